"""Matched recipes x seeds -> one comparison."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from widthwise.config_io import UserError
from widthwise.experiments.agenda import Agenda, Work
from widthwise.experiments.crew import Crew, crew
from widthwise.experiments.equal_loss import Course, Courses, validations_of
from widthwise.experiments.jobs import Jobs, do_all, share_with_others
from widthwise.experiments.plan import ComparisonPlan
from widthwise.experiments.runs import Results, Trained, arrived, check_same_data, run_paths, variant_of, windows
from widthwise.experiments.sentences import comparison_sentences, interval, seeds, too_few_validations
from widthwise.experiments.sharing.queue import Queue
from widthwise.experiments.sharing.storage import Heartbeat
from widthwise.experiments.sharing.worker import SharedPlace, Words, Worker
from widthwise.experiments.trend import fit_trend
from widthwise.files import missing_folders, remove_unused
from widthwise.recipe.recipe import Recipe
from widthwise.records.comparison import Comparison, Trend
from widthwise.records.estimate import CONFIDENCE, NO_VERDICT, TIE_MARGIN
from widthwise.records.listing import PlannedRuns
from widthwise.records.quantities import QUANTITY
from widthwise.records.record import finite
from widthwise.run_dir import RunDir
from widthwise.runs.data_identity import DataShelf
from widthwise.runs.environment import command_line
from widthwise.runs.speed import chosen_precision, step_seconds
from widthwise.runs.train import train_or_resume
from widthwise.training.launch import is_launched
from widthwise.training.observer import Observer, Silence
from widthwise.training.stopping import interruption_adds

WORDS = Words(experiment="comparison", task="run")
TRIED_FLOPS = 5e10
"""Of a step: up to this many, it is short enough to be tried before an experiment begins."""


def run_plan(
    plan: ComparisonPlan,
    folder: Path | str,
    command: str | None = None,
    observer: Observer | None = None,
    storage_url: str | None = None,
    study_name: str | None = None,
    heartbeat: Heartbeat | None = None,
    jobs: Jobs | None = None,
) -> Comparison:
    """Runs what is not finished, seed by seed so that every variant has a first result early; writes comparison.json.

    command: how it is repeated, for the report; this process's command line where not given. storage_url: a database
    that Optuna can use; all workers with the same one divide the runs, and each returns when the last has finished.
    Default: this process does all. jobs: how many runs are trained here at a time. Returns the comparison. A run that
    fails stops the comparison (other workers when they come to that run); finished runs are kept and not repeated.
    Raises UserError if finished runs saw different data from the present, as after an upgrade of Python. Under torchrun
    all processes call this, and train each run together.
    """
    asked, folder, observer, jobs = plan, Path(folder), observer or Silence(), jobs or Jobs()

    def work() -> Comparison:
        plan = asked.settled(partial(chosen_precision, folder, observer))
        plan.planned_runs(command or command_line()).write(folder)
        runs = _Runs(plan, folder, processes, observer)
        if jobs.n > 1:
            processes.check_data(plan.recipes[plan.baseline], observer)
        if storage_url is None:
            runs.train(jobs)
        else:
            place = SharedPlace(folder, storage_url, study_name or plan.title, heartbeat)
            with interruption_adds(WORDS.advice):
                share_with_others(partial(_join, plan, place, processes.shelf), jobs, observer)
            with jobs.threads():
                runs.share(place.queue(WORDS, plan.identity))
        environment, command_words = runs.first.environment(), command or command_line()
        comparison = summarise(plan, runs.results(), environment, command_words, runs.courses())
        comparison.write(folder)
        return comparison

    made = missing_folders(folder)
    try:
        with crew(asked.recipes[asked.baseline]) as processes:
            return processes.do(work)
    finally:
        remove_unused(made, {PlannedRuns.file_name})


def expected_seconds(plan: ComparisonPlan, folder: Path, jobs: Jobs) -> float | None:
    """Seconds of training that the unfinished runs take here, from a measured step of each of their variants.

    None where nothing is left, where steps are too long to be tried, on a GPU and under torchrun.
    """
    left = [key for key in plan.runs.values() if not RunDir(folder / plan.run_path(*key)).has_result]
    recipes = [(plan.recipes[name], n_runs) for name, n_runs in Counter(name for name, _ in left).items()]
    largest = max((recipe.training_flops / recipe.train.steps for recipe, _ in recipes), default=0)
    if not 0 < largest <= TRIED_FLOPS or torch.cuda.is_available() or is_launched():
        return None
    chosen = cache(partial(chosen_precision, folder))
    with jobs.threads():
        each = (n_runs * _steps(recipe) * step_seconds(recipe.settled(chosen)) for recipe, n_runs in recipes)
        return sum(each) / jobs.n


def _steps(recipe: Recipe) -> float:
    """Those of a run and of its validations, whose forward passes take a third."""
    train = recipe.train
    n_validations = math.ceil(train.steps / (train.validate_every or train.steps))
    return train.steps + n_validations * (train.validation_tokens or 0) / recipe.tokens_per_step / 3


def _join(plan: ComparisonPlan, place: SharedPlace, shelf: DataShelf, observer: Observer) -> None:
    """What another worker on this machine does."""
    with crew(plan.recipes[plan.baseline], shelf) as processes:
        _Runs(plan, place.folder, processes, observer).share(place.queue(WORDS, plan.identity))


class _Runs:
    def __init__(self, plan: ComparisonPlan, folder: Path, crew: Crew, observer: Observer):
        self._plan, self._folder, self._crew = plan, folder, crew
        works = {name: Work.of(recipe) for name, recipe in plan.recipes.items()}
        self._agenda = Agenda(observer, {key: works[name] for key, (name, _) in plan.runs.items()})
        self.first = self._run(plan.baseline, plan.seeds[0])

    def train(self, jobs: Jobs) -> None:
        """Trains every run that has not finished."""
        train = self._crew.train if jobs.n == 1 else partial(train_or_resume, shelf=self._crew.shelf)
        tasks = {
            key: partial(train, self._plan.run_recipe(name, seed), self._run(name, seed).path)
            for key, (name, seed) in self._plan.runs.items()
        }

        @contextmanager
        def observing(key: str, waiting: list[str], observer: Observer) -> Iterator[Observer]:
            left = [each for each in waiting if not self._run(*self._plan.runs[each]).has_result]
            with self._agenda.at_work_on(key, left, observer=observer) as own:
                yield own
            self._check_same_data(*self._plan.runs[key])

        with interruption_adds(WORDS.advice):
            do_all(tasks, jobs, self._agenda.observer, observing)

    def share(self, queue: Queue) -> None:
        """Trains the runs that no other worker has claimed.

        An exception puts a run back into the queue, so that one machine's trouble does not stop the others.
        """
        worker = Worker(WORDS, queue, list(self._plan.runs), self._crew, self._agenda.observer)
        for claim in worker.claims():
            with worker.at_work_on(claim):
                name, seed = self._plan.runs[claim.key]
                waiting, running = worker.others(claim)
                with self._agenda.at_work_on(claim.key, waiting, [[key] for key in running]) as observer:
                    result = worker.train(self._plan.run_recipe(name, seed), self._run(name, seed).path, observer)
                self._check_same_data(name, seed)
                claim.finish(finite(result.val_loss))

    def results(self) -> Mapping[str, Results]:
        """Variant -> one result per seed, when all have finished."""
        found = {name: [arrived(self._run(name, seed)) for seed in self._plan.seeds] for name in self._plan.recipes}
        for name, seed in self._plan.runs.values():
            self._check_same_data(name, seed)
        return found

    def courses(self) -> Mapping[str, Courses]:
        """Variant -> the course of the run of each seed, when all have finished."""
        return {
            name: [Course.of(self._run(name, seed).metrics()) for seed in self._plan.seeds]
            for name in self._plan.recipes
        }

    def _run(self, name: str, seed: int) -> RunDir:
        return RunDir(self._folder / self._plan.run_path(name, seed))

    def _check_same_data(self, name: str, seed: int) -> None:
        if self.first.exists:  # another worker may be about to begin it
            check_same_data(self._run(name, seed), self.first)


def summarise(
    plan: ComparisonPlan,
    results: Mapping[str, Results],
    environment: dict[str, Any],
    command: str,
    courses: Mapping[str, Courses] | None = None,
) -> Comparison:
    """The comparison as a record.

    results: variant -> one result per seed, in the order of plan.seeds; courses: the courses of these runs, or None if
    nothing is to be said of equal losses.
    """
    trained = {
        name: Trained(run_paths(name, plan.seeds), results[name], courses[name] if courses else ())
        for name in plan.recipes
    }
    variants = [variant_of(name, own, trained[plan.baseline]) for name, own in trained.items()]
    validations = validations_of(itertools.chain(*courses.values())) if courses else None
    trend = _trend(plan, results)
    sentences = comparison_sentences(variants, plan.baseline)
    return Comparison(
        title=plan.title,
        command=command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        metric="val_loss",
        confidence=CONFIDENCE,
        seeds=list(plan.seeds),
        baseline=plan.baseline,
        matched=plan.match,
        sentence="\n".join(
            (*sentences, *too_few_validations(validations), *([_trend_sentence(trend)] if trend else []))
        ),
        environment=environment,
        validations=validations,
        variants=variants,
        trend=trend,
    )


def _trend(plan: ComparisonPlan, results: Mapping[str, Results]) -> Trend | None:
    if plan.trend is None:
        return None
    values, of = plan.trend_values(), plan.trend.of
    losses = {name: windows(results[name], of) for name in values}
    if not all(each.size for each in losses.values()):
        raise UserError(f"compare.trend.of: {of} is not known for every window of runs of an older version")
    return fit_trend(plan.trend.over, values, losses, CONFIDENCE, of)


TREND_PHRASES = {
    "better": "lowers the {loss} by {size:.4f} nats",
    "worse": "raises the {loss} by {size:.4f} nats",
    "tie": "changes the {loss} by {mean:+.4f} nats, and the whole range surely by less than {margin}",
    "cannot tell": "changes the {loss} by {mean:+.4f} nats, but {n} cannot tell that from luck",
    "no verdict": f"changes the {{loss}} by {{mean:+.4f}} nats: {NO_VERDICT}",
}


def _trend_sentence(trend: Trend) -> str:
    slope, values = finite(trend.slope.mean), [point.value for point in trend.points]
    phrase = TREND_PHRASES[trend.verdict].format(
        loss=QUANTITY[trend.of].title,
        size=abs(slope),
        mean=slope,
        margin=TIE_MARGIN,
        n=seeds(len(trend.slope.per_seed)),
    )
    farthest = max(trend.points, key=lambda point: abs(finite(point.residual)))
    fit = "all means are equal"
    if trend.r_squared is not None:
        fit = f"R² is {trend.r_squared:.4f}, and {farthest.variant} lies {farthest.residual:+.4f} nats off the line"
    return (
        f"Each doubling of {trend.over}, from {min(values):,.7g} to {max(values):,.7g}, {phrase} "
        f"({interval(trend.slope)}); {fit}."
    )
