"""Verbs that train many runs and compare them, `compare` and `family`; options, planned work and results that other
verbs share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from widthwise.cli.options import Changes, JsonOption, RunArgument, Seeds, is_change
from widthwise.cli.progress import TrackerName, training_progress
from widthwise.cli.terminal import say_result
from widthwise.config_io import Config
from widthwise.mistakes import RunFailed, UserError
from widthwise.records.outcome import Outcome
from widthwise.records.quantities import QUANTITY
from widthwise.reports.formats import clean, duration, shown, signed
from widthwise.reports.main_table import comparison_table
from widthwise.reports.table import Table
from widthwise.runs.environment import command_line
from widthwise.training.launch import is_silent

if TYPE_CHECKING:
    from widthwise.experiments.plan import Plan

WORKERS = "Workers"
WORKLOAD = [QUANTITY[name] for name in ("params", "steps", "tokens", "training_flops")]


class TrainingOptions(Config):
    """The options of training many runs."""

    jobs: str = "auto"
    """Runs trained at the same time on this machine; auto: as many as fit on its cores or GPUs."""
    track: tuple[TrackerName, ...] = ()
    """Tracker that also gets the records of runs; repeat for several."""

    @property
    def n_jobs(self) -> int | None:
        """The number of jobs; None for auto. Raises UserError."""
        if self.jobs == "auto":
            return None
        if not self.jobs.isdecimal() or int(self.jobs) < 1:
            raise UserError(f"--jobs: got {self.jobs!r}; must be auto or a number of at least 1")
        return int(self.jobs)


class WorkerOptions(TrainingOptions):
    """The options of training runs, divided among workers."""

    worker: bool = False
    """End when no run is left to begin, without waiting for the runs of other workers."""


class ExperimentOptions(Config):
    """Options that replace settings of an experiment's recipe."""

    out: Path | None = None
    """Folder; default: runs/RECIPE, or runs/RECIPE-vs-RECIPE."""
    seeds: Seeds = ()
    """Seed, repeat for several; default: the recipe's, or 1, 2 and 3."""
    match: str | None = None
    """Quantity that must match the baseline: params, layer_params (attention and feed-forward), active_params, flops,
    flops_causal, kv_bytes, training_flops, none."""
    adjust: str | None = None
    """Parts of all variants that are changed to match: ffn, d_model or shape, or several in order: d_model,ffn."""
    dry_run: bool = False
    """Show the planned work without training."""


class CompareOptions(ExperimentOptions):
    """Options of a comparison."""

    rates_from: Path | None = None
    """Folder of a finished sweep of these variants; each variant gets the values of its best point."""


def compare(
    recipes: Annotated[list[str], typer.Argument(help="Recipes, the baseline first; then changes, as a.b=c.")],
    options: CompareOptions,
    training: Annotated[WorkerOptions, WORKERS],
    as_json: JsonOption = False,
) -> None:
    """Train matched recipes over several seeds with the same data order and report the paired differences.

    Pass several recipes (baseline first), or one with a compare section.

    Finished runs are not repeated: the same command continues an interrupted comparison. Several processes of the same
    command, on machines that share the folder, divide the runs.

    Example: `widthwise compare configs/uniform_200m.yaml configs/x_200m.yaml train.steps=2000`
    """
    from widthwise.experiments.compare import read_plan

    overrides = [argument for argument in recipes if is_change(argument)]
    paths = [Path(argument) for argument in recipes if not is_change(argument)]
    if not paths:
        raise UserError("compare: got no recipe; pass several, or one with a compare section")
    plan = read_plan(paths, overrides, options.seeds, options.match, options.adjust, rates_from=options.rates_from)
    if options.dry_run:
        show_workload(plan, as_json)
    else:
        run_and_report(plan, options.out or Path("runs") / plan.title, as_json, training, not training.worker)


class FamilyOptions(Config):
    """The options of a family."""

    to: tuple[Path, ...] = ()
    """Recipe of a larger model; repeat for several."""
    also: tuple[Path, ...] = ()
    """Run of the same recipe with another seed, which is grown too; repeat for several."""
    alone: Literal["tokens", "flops"] | None = None
    """Also train each model from scratch, on equal tokens or with equal training FLOPs."""
    out: Path | None = None
    """Folder of the new runs; default: RUN-family."""


def family(
    run: RunArgument,
    options: FamilyOptions,
    training: Annotated[TrainingOptions, WORKERS],
    overrides: Changes = None,
    as_json: JsonOption = False,
) -> None:
    """Grow one run into several sizes without changing its function, and train each to the end of its recipe.

    Changes apply to all recipes. Finished runs are not repeated: the same command continues an interrupted family.

    Example: `widthwise family runs/small --to configs/medium.yaml --to configs/large.yaml --out runs/family`
    """
    from widthwise.experiments.family import plan_family
    from widthwise.reports.writing import check_kind
    from widthwise.runs.trained import RunCheckpoint

    if not options.to:
        raise UserError("--to: is required; pass the recipe of a larger model, repeated for several")
    folder = options.out or run.with_name(f"{run.name}-family")
    check_kind(folder, Outcome.file_name)
    parents = [RunCheckpoint.of(parent) for parent in (run, *options.also)]
    plan = plan_family(parents, options.to, overrides or (), options.alone)
    run_and_report(plan, folder, as_json, training)


def run_and_report(
    plan: "Plan",
    folder: Path,
    as_json: bool,
    training: TrainingOptions,
    waits: bool = True,
) -> None:
    """Train the runs of an experiment, show their progress, and print the result.

    waits: wait for the runs of other workers. Raises RunFailed if all points failed.
    """
    from widthwise.experiments.running import expected_seconds, jobs_of, run_experiment
    from widthwise.experiments.scheduler import HeldElsewhere
    from widthwise.reports.experiment import answer, branch_table, tuning_table
    from widthwise.reports.writing import write_report

    jobs = jobs_of(plan, training.n_jobs)
    with training_progress(training.track) as observer:
        amount = plan.in_words
        seconds = expected_seconds(plan, folder, jobs) if plan.is_timed else None
        if seconds:
            amount += f"; about {duration(seconds / 3600)} on this machine, from a measured step of each variant"
        for line in (amount, *plan.adjustment_lines):
            observer.message(line)
        try:
            outcome = run_experiment(plan, folder, command_line(), observer, jobs, waits)
        except HeldElsewhere as error:
            observer.message(str(error))
            return
    if is_silent():
        return
    files = reversed(write_report([folder]))
    failed = [point for point in outcome.open_points if point.state == "failed"]
    reasons = [f"{point.name}: {clean(point.reason or '')}" for point in failed]
    branches = branch_table(outcome.family) if outcome.family is not None else None
    tables = [comparison_table(outcome), branches, tuning_table(outcome.tuning)]
    say_result(outcome, as_json, [*answer(outcome), *reasons], tables, files)
    if outcome.study is not None and not outcome.study.n_finished:
        raise RunFailed(f"{folder}: all {outcome.study.n_failed} points failed")


def show_workload(plan: "Plan", as_json: bool) -> None:
    """Print a table of the planned work and the adjustments, or JSON."""
    work = plan.workload()
    notes = ["tokens and FLOPs of all seeds"]
    if work["match"]:
        notes.append(f"difference: {QUANTITY[work['match']].title}, from {clean(work['baseline'])}")
    header = [plan.row, *(cost.brief_title for cost in WORKLOAD)]
    rows = [[clean(point["name"]), *(shown(point[cost.name], cost) for cost in WORKLOAD)] for point in work["points"]]
    if work["match"]:
        header.append("difference")
        for cells, point in zip(rows, work["points"]):
            cells.append("" if point["miss"] is None else f"{signed(100 * point['miss'], 3)}%")
    table = Table(clean(plan.title), header, rows, note="\n".join(notes))
    say_result(work, as_json, (), [table], notes=[plan.in_words, *plan.adjustment_lines])
