"""Running an experiment: the runs that are left are trained, by all workers that share the folder, and summarised."""

import math
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache, partial
from pathlib import Path
from typing import cast

import torch

from widthwise.computing import Precision
from widthwise.config_io import UserError
from widthwise.experiments.experiment import Experiment, run_path, seeded
from widthwise.experiments.findings import Findings
from widthwise.experiments.jobs import Jobs, Run, process_group
from widthwise.experiments.outcome import check_same_data, load_result
from widthwise.experiments.scheduler import Schedule, train_all
from widthwise.experiments.study import Study
from widthwise.files import missing_folders, remove_unused, write_first
from widthwise.recipe.recipe import Recipe, saved_recipe
from widthwise.records.outcome import Outcome
from widthwise.records.record import finite
from widthwise.records.run import PlannedRun, PlannedRuns
from widthwise.run_dir import RunDir, RunFailed
from widthwise.runs.environment import command_line
from widthwise.runs.listing import stop_message
from widthwise.runs.speed import chosen_precision, step_seconds
from widthwise.training.launch import RankLocalError, is_launched
from widthwise.training.observer import Observer, SilentObserver
from widthwise.yaml_io import to_yaml

PRECISION = "precision"
"""File that holds the choice for `precision: auto` in an experiment."""
TRIED_FLOPS = 5e10
"""FLOPs of a step that is short enough to be tried before an experiment begins."""


def run_experiment(
    plan: Experiment,
    folder: Path | str,
    command: str | None = None,
    observer: Observer | None = None,
    jobs: Jobs | None = None,
    waits: bool = True,
) -> Outcome:
    """Train the runs that have not finished, and write outcome.json: of a sweep after each point.

    command: how it is repeated, for the report; this process's command line where not given. jobs: how many runs are
    trained here at a time. Several processes, also on other machines, may call this for one folder: they divide the
    runs. waits: for the runs of others; else HeldElsewhere is raised if some are left when there is nothing more to
    begin.

    Returns the record. A run that fails stops a comparison, and is kept with the reason in a sweep; finished runs are
    not repeated. Raises UserError for a mistake, also if finished runs saw different data from the present, as after an
    upgrade of Python, and Interrupted after Ctrl-C or SIGTERM. Under torchrun all processes call this, and train each
    run together.
    """
    folder, shown, at_a_time = Path(folder), observer or SilentObserver(), jobs or Jobs()
    command = command or command_line()

    held = plan.kind
    with suppress(UserError):  # of no outcome, or a broken one, which is written again
        held = Outcome.read(folder).kind
    if held != plan.kind:
        raise UserError(f"{folder}: holds the outcome of a {held}; choose another folder for a {plan.kind}")

    choose, kind = cache(partial(_one_precision, folder, shown)), "comparison" if plan.axes is None else "sweep"

    def work() -> Outcome:
        if at_a_time.n > 1 or plan.axes is not None:
            group.check_data(plan.reference, shown)
        study = None if plan.space is None else ending.enter_context(Study(plan, folder))
        schedule = _ExperimentSchedule(plan.settled(choose), folder, command, shown, choose, study)
        train_all(schedule, group, at_a_time, kind, waits)
        return schedule.write()

    made = missing_folders(folder)
    try:
        with process_group(plan.reference) as group, ExitStack() as ending:
            return group.do(work)
    finally:
        remove_unused(made, {PlannedRuns.file_name, PRECISION})


def _write_planned(plan: Experiment, folder: Path, command: str) -> None:
    planned = [
        PlannedRun(path=str(run_path(name, seed)), variant=name, seed=seed, n_steps=plan.recipes[name].train.steps)
        for name, seed in plan.order
    ]
    PlannedRuns(title=plan.title_in(folder), command=command, baseline=plan.baseline, runs=planned).write(folder)


def jobs_of(plan: Experiment, asked: int | None) -> Jobs:
    """Return as many jobs as the machine has room for, or the given number."""
    return Jobs.of([plan.reference, *plan.recipes.values()], plan.n_points * len(plan.seeds), asked)


def _one_precision(folder: Path, observer: Observer) -> Precision:
    """Return the precision of all runs of an experiment, on all machines: the first worker chooses."""
    folder.mkdir(parents=True, exist_ok=True)
    return cast(Precision, write_first(folder / PRECISION, chosen_precision(folder, observer) + "\n").strip())


class _ExperimentSchedule(Schedule):
    """A run that fails stops a comparison. A point of a sweep that fails is kept with the reason, and a search adds
    points as there is room for them."""

    def __init__(
        self,
        plan: Experiment,
        folder: Path,
        command: str,
        observer: Observer,
        choose: Callable[[], Precision],
        study: Study | None,
    ):
        """Also write planned.json. choose: the precision of recipes that say `auto`. study: that of a search."""
        self._plan, self._folder, self._choose, self._study = plan, folder, choose, study
        self._findings, self.failures = Findings(plan, folder, command, study), dict[str, str]()
        n_unknown = (plan.n_points - len(plan.points)) * len(plan.seeds)
        runs = [self._run(name, plan.recipes[name], seed) for name, seed in plan.order]
        super().__init__(runs, observer, [plan.reference.training_flops] * n_unknown)
        _write_planned(plan, folder, command)

    def _run(self, name: str, recipe: Recipe, seed: int) -> Run:
        return Run(self._folder / run_path(name, seed), seeded(recipe, seed), name)

    @property
    def n_held_elsewhere(self) -> int:
        return super().n_held_elsewhere + (0 if self._study is None else self._study.n_open)

    @property
    def is_over(self) -> bool:
        return super().is_over and (self._study is None or self._study.n_open == 0)

    def next(self) -> Run | None:
        run = super().next()
        while run is None and self._study is not None and (point := self._study.take()) is not None:
            if point.adjustment is not None:
                self.observer.message(f"{point.name}: {point.adjustment}")
            recipe = point.recipe.settled(self._choose)
            self.add(self._run(point.name, recipe, seed) for seed in self._plan.seeds)
            run = super().next()
        return run

    def may_begin(self, run: Run) -> bool:
        """Return False for a run of a sweep that has diverged: it would diverge again. Raises UserError if it is one of
        another recipe."""
        held = RunDir(run.path)
        if self._plan.axes is None or (reason := stop_message(held)) is None:
            return True
        held.check_recipe(to_yaml(run.recipe.resolved()), to_yaml(saved_recipe(held)))
        self._fail(run.point, f"{run.path}: {reason}", is_final=True)
        return False

    def finished(self, run: Run) -> None:
        if self._plan.axes is None:
            first = RunDir(self._folder / run_path(*self._plan.order[0]))
            if first.exists:  # another worker may be about to begin it
                check_same_data(RunDir(run.path), first)
            return
        if any(each.point == run.point for each in self.left.values()):
            return
        if self._study is not None:
            results = [load_result(RunDir(self._folder / run_path(run.point, seed))) for seed in self._plan.seeds]
            self._study.finish(run.point, sum(finite(each.val_loss) for each in results) / len(results))
        self.write()

    def failed(self, run: Run, error: BaseException) -> None:
        is_of_point = isinstance(error, (UserError, RunFailed)) and not isinstance(error, RankLocalError)
        # A finished run that is refused is one of another recipe, whose result would stand for this point's.
        if self._plan.axes is None or not is_of_point or RunDir(run.path).has_result:
            raise error
        if run.point not in self.failures:
            self._fail(run.point, str(error), is_final=isinstance(error, RunFailed))
            self.observer.message(f"failed: {self.failures[run.point]}")
            self.write()

    def _fail(self, point: str, reason: str, is_final: bool) -> None:
        self.failures[point] = reason.replace(f"{self._folder}/", "")
        self.drop(point)
        if self._study is not None:
            self._study.fail(point, self.failures[point], is_final)

    def write(self) -> Outcome:
        """Return the results so far, and write their file."""
        found = self._findings.outcome(self.failures)
        found.write(self._folder)
        return found


def expected_seconds(plan: Experiment, folder: Path, jobs: Jobs) -> float | None:
    """Return the seconds of training that the unfinished runs take here, from a measured step of each variant.

    None if nothing is left, if steps are too long to be tried, on a GPU and under torchrun.
    """
    left = [key for key in plan.order if not RunDir(folder / run_path(*key)).has_result]
    points = [(plan.points[name], n_runs) for name, n_runs in Counter(name for name, _ in left).items()]
    largest = max((point.recipe.training_flops / point.recipe.train.steps for point, _ in points), default=0)
    if not 0 < largest <= TRIED_FLOPS or torch.cuda.is_available() or is_launched():
        return None
    chosen = cache(partial(chosen_precision, folder))
    with jobs.threads():
        seconds = 0.0
        for point, n_runs in points:
            recipe, train = point.recipe, point.recipe.train
            n_validations = math.ceil(train.steps / (train.validate_every or train.steps))
            # A forward pass takes a third of a step.
            n_steps = train.steps + n_validations * (train.validation_tokens or 0) / recipe.tokens_per_step / 3
            seconds += n_runs * n_steps * step_seconds(recipe.settled(chosen))
        return seconds / jobs.n
