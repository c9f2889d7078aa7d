"""Running an experiment: all workers that share the folder train its remaining runs, and summarise them."""

from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

from widthwise.experiments.jobs import Jobs, ProcessGroup
from widthwise.experiments.plan import Comparison, Ladder, Plan, Sweep, run_path
from widthwise.experiments.results import PRECISION_FILE, ComparisonResults, LadderResults, Results, SweepResults
from widthwise.experiments.scheduler import Schedule, train_all
from widthwise.experiments.study import SearchResults
from widthwise.experiments.sweep import Search
from widthwise.files import missing_folders, remove_unused
from widthwise.mistakes import UserError
from widthwise.records.outcome import Outcome
from widthwise.records.run import PlannedRuns
from widthwise.run_dir import RunDir
from widthwise.runs.environment import command_line
from widthwise.runs.train import launched_processes
from widthwise.training.observer import Observer, SilentObserver

RESULTS: dict[type[Plan], type[Results[Any]]] = {
    Comparison: ComparisonResults,
    Sweep: SweepResults,
    Ladder: LadderResults,
    Search: SearchResults,
}
"""Kind of plan -> its results."""


def run_experiment(
    plan: Plan,
    folder: Path | str,
    command: str | None = None,
    observer: Observer | None = None,
    jobs: Jobs | None = None,
    waits: bool = True,
) -> Outcome:
    """Train the runs that have not finished, write outcome.json, and return the record.

    command: repeats the experiment, for the report; default: the command line of this process. jobs: number of runs
    trained by this process at a time. Several processes, also on other machines, may call this for one folder: they
    divide the runs. waits: wait for the runs of other workers; otherwise HeldElsewhere is raised if only these remain.

    A failed run stops a comparison; a sweep records it with the reason, and writes outcome.json after each point.
    Finished runs are not repeated. Raises UserError for a mistake, or if finished runs read other data, for example
    after an upgrade of Python; raises Interrupted after Ctrl-C or SIGTERM. Under torchrun all processes call this, and
    train each run together.
    """
    folder = Path(folder)
    kind = plan.kind
    with suppress(UserError):  # a missing or broken outcome is written again
        kind = Outcome.read(folder).kind
    if kind != plan.kind:
        raise UserError(f"{folder}: holds the outcome of a {kind}; choose another folder for a {plan.kind}")
    results = RESULTS[type(plan)](plan, folder, command or command_line(), observer or SilentObserver())
    new_folders = missing_folders(folder)
    try:
        with launched_processes(plan.reference.train) as processes:
            group = ProcessGroup(processes)
            return group.do(partial(_train, results, group, jobs or Jobs(), waits))
    finally:
        remove_unused(new_folders, {PlannedRuns.file_name, PRECISION_FILE})


def _train(results: Results[Plan], group: ProcessGroup, jobs: Jobs, waits: bool) -> Outcome:
    """Train the remaining runs, and return the record. Runs in the first process of the group."""
    plan = results.plan
    n_runs = plan.n_points * len(plan.seeds)
    if sum(RunDir(results.folder / run_path(*key)).has_result for key in plan.order) < n_runs:
        reference = plan.reference.settled(lambda: results.precision)
        data = group.data_cache.open(reference.data, results.observer.preparing)
        reference.held_out(data).check()
        group.data_cache.check(reference.data, results.observer.preparing)
    runs = results.begin()
    with closing(results):
        undrawn_flops = [plan.reference.training_flops] * (n_runs - len(runs))
        train_all(Schedule(runs, results.observer, results, undrawn_flops), group, jobs, plan.kind, waits)
        return results.write()
