"""Running an experiment: its remaining runs are trained, by all workers that share the folder, and summarised."""

import math
from collections import Counter
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from widthwise.config_io import UserError
from widthwise.experiments.family import FamilyPlan, FamilyResults
from widthwise.experiments.jobs import Jobs, ProcessGroup, process_group
from widthwise.experiments.plan import Comparison, Ladder, Plan, Sweep, run_path
from widthwise.experiments.results import PRECISION, ComparisonResults, Results
from widthwise.experiments.scheduler import Schedule, train_all
from widthwise.experiments.sweep import Search
from widthwise.experiments.sweep_results import LadderResults, SearchResults, SweepResults
from widthwise.files import missing_folders, remove_unused
from widthwise.records.outcome import Outcome
from widthwise.records.run import PlannedRuns
from widthwise.run_dir import RunDir
from widthwise.runs.environment import command_line
from widthwise.runs.speed import chosen_precision, step_seconds
from widthwise.training.launch import is_launched
from widthwise.training.observer import Observer, SilentObserver

RESULTS: dict[type[Plan], type[Results[Any]]] = {
    Comparison: ComparisonResults,
    Sweep: SweepResults,
    Ladder: LadderResults,
    Search: SearchResults,
    FamilyPlan: FamilyResults,
}
"""Kind of plan -> its results."""
TRIED_FLOPS = 5e10
"""FLOPs of a step that is short enough to be tried before an experiment begins."""


def run_experiment(
    plan: Plan,
    folder: Path | str,
    command: str | None = None,
    observer: Observer | None = None,
    jobs: Jobs | None = None,
    waits: bool = True,
) -> Outcome:
    """Train the runs that have not finished, and write outcome.json: of a sweep after each point.

    command: repeats the experiment, for the report; default: the command line of this process. jobs: how many runs are
    trained here at a time. Several processes, also on other machines, may call this for one folder: they divide the
    runs. waits: for the runs of others; else HeldElsewhere is raised if some remain when there is nothing more to
    begin.

    Returns the record. A run that fails stops a comparison, and is recorded with the reason in a sweep; finished runs
    are not repeated. Raises UserError for a mistake, also if finished runs saw different data from the present, as
    after an upgrade of Python, and Interrupted after Ctrl-C or SIGTERM. Under torchrun all processes call this, and
    train each run together.
    """
    folder = Path(folder)
    kind = plan.kind
    with suppress(UserError):  # without an outcome, or with a broken one, it is written again
        kind = Outcome.read(folder).kind
    if kind != plan.kind:
        raise UserError(f"{folder}: holds the outcome of a {kind}; choose another folder for a {plan.kind}")
    results = RESULTS[type(plan)](plan, folder, command or command_line(), observer or SilentObserver())
    new_folders = missing_folders(folder)
    try:
        with process_group(plan.reference) as group:
            return group.do(partial(_train, results, group, jobs or Jobs(), waits))
    finally:
        remove_unused(new_folders, {PlannedRuns.file_name, PRECISION})


def _train(results: Results[Plan], group: ProcessGroup, jobs: Jobs, waits: bool) -> Outcome:
    """Train the remaining runs, and return the record. Only in the first process of the group."""
    plan = results.plan
    n_runs = plan.n_points * len(plan.seeds)
    if sum(RunDir(results.folder / run_path(*key)).has_result for key in plan.order) < n_runs:
        group.check_data(plan.reference.settled(results.precision), results.observer)
    with results:
        runs = results.begin()
        to_draw = [plan.reference.training_flops] * (n_runs - len(runs))
        train_all(Schedule(runs, results.observer, results, to_draw), group, jobs, plan.kind, waits)
        return results.write()


def jobs_of(plan: Plan, n: int | None) -> Jobs:
    """Return as many jobs as the machine has room for, or n."""
    return Jobs.of([plan.reference, *plan.recipes.values()], plan.n_points * len(plan.seeds), n)


def expected_seconds(plan: Plan, folder: Path, jobs: Jobs) -> float | None:
    """Return the seconds of training that the unfinished runs take here, from a measured step of each variant.

    None if nothing remains, if steps are too long to be tried, on a GPU and under torchrun.
    """
    remaining = [key for key in plan.order if not RunDir(folder / run_path(*key)).has_result]
    points = [(plan.points[name], n_runs) for name, n_runs in Counter(name for name, _ in remaining).items()]
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
