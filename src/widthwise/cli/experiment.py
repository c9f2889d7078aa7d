"""Verbs that train many runs and compare them, `compare` and `family`, and what others share with them: options,
planned work and results on the terminal."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from widthwise.cli.options import Changes, JsonOption, RunArgument, Seeds, is_change
from widthwise.cli.progress import TrackerName, training_progress
from widthwise.cli.terminal import say_result
from widthwise.config_io import Config, UserError
from widthwise.mistakes import RunFailed
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
    """Runs trained at the same time on this machine; auto: as many as it has cores, or GPUs, for."""
    track: tuple[TrackerName, ...] = ()
    """Also send the records of runs there; repeat for several."""

    @property
    def n_jobs(self) -> int | None:
        """The number that was given; None: auto. Raises UserError."""
        if self.jobs == "auto":
            return None
        if not self.jobs.isdecimal() or int(self.jobs) < 1:
            raise UserError(f"--jobs: got {self.jobs!r}; must be auto or a number of at least 1")
        return int(self.jobs)


class WorkerOptions(TrainingOptions):
    """The options of training runs that several workers divide."""

    worker: bool = False
    """Do not wait for runs that other workers hold: end when there is nothing left to begin."""


class ExperimentOptions(Config):
    """Options that replace settings of an experiment's recipe."""

    out: Path | None = None
    """Folder; default: runs/RECIPE, or runs/RECIPE-vs-RECIPE."""
    seeds: Seeds = ()
    """Seed, repeat for several; default: the recipe's, or 1, 2 and 3."""
    match: str | None = None
    """Quantity that must match the baseline's: params, layer_params (attention and feed-forward), active_params, flops,
    flops_causal, kv_bytes, training_flops, none."""
    adjust: str | None = None
    """Parts of all others that are changed until it matches: ffn, d_model or shape; in turn: d_model,ffn."""
    dry_run: bool = False
    """Show the planned work, and train nothing."""


class CompareOptions(ExperimentOptions):
    """Options of a comparison."""

    rates_from: Path | None = None
    """Folder of a finished sweep of these variants: each gets the values of its best point."""


def compare(
    recipes: Annotated[list[str], typer.Argument(help="Recipes, the baseline first; then changes, as a.b=c.")],
    options: CompareOptions,
    training: Annotated[WorkerOptions, WORKERS],
    as_json: JsonOption = False,
) -> None:
    """Train matched recipes over several seeds with the same data order and report the paired differences.

    They are several recipes, or one with a compare section.

    Finished runs are not repeated: the same command continues an interrupted comparison. Started several times, on one
    machine or on several that share the folder, it divides the runs.

    Example: `widthwise compare configs/uniform_200m.yaml configs/x_200m.yaml train.steps=2000`
    """
    from widthwise.experiments.compare import read_plan

    overrides = [argument for argument in recipes if is_change(argument)]
    paths = [Path(argument) for argument in recipes if not is_change(argument)]
    if not paths:
        raise UserError("compare: got no recipe; name one with a compare section, or several")
    plan = read_plan(paths, overrides, options.seeds, options.match, options.adjust, rates_from=options.rates_from)
    if options.dry_run:
        show_workload(plan, as_json)
    else:
        run_and_report(plan, options.out or Path("runs") / plan.title, as_json, training, not training.worker)


class FamilyOptions(Config):
    """The models that a run is grown into."""

    to: tuple[Path, ...] = ()
    """Recipe of a larger model; repeat for several."""
    also: tuple[Path, ...] = ()
    """Run of the same recipe with another seed, grown too; repeat for several."""
    alone: Literal["tokens", "flops"] | None = None
    """Train each model from scratch too, on as many tokens or with as many training FLOPs."""
    out: Path | None = None
    """Folder of the new runs; default: RUN-family."""


def family(
    run: RunArgument,
    options: FamilyOptions,
    training: Annotated[TrainingOptions, WORKERS],
    overrides: Changes = None,
    as_json: JsonOption = False,
) -> None:
    """Grow one run into several sizes without changing what it computes, and train each to the end of its recipe.

    Changes are made in all recipes.

    Finished branches are not trained again: the same command continues an interrupted family.

    Example: `widthwise family runs/small --to configs/medium.yaml --to configs/large.yaml --out runs/family`
    """
    from widthwise.experiments.family import plan_family
    from widthwise.reports.writing import check_kind
    from widthwise.runs.trained import RunCheckpoint

    if not options.to:
        raise UserError("--to: is required; give the recipe of a larger model, one --to for each")
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

    waits: until others have finished the runs they hold. Raises RunFailed if all points failed.
    """
    from widthwise.experiments.running import expected_seconds, jobs_of, run_experiment
    from widthwise.experiments.scheduler import HeldElsewhere
    from widthwise.reports.comparison_page import tuning_table
    from widthwise.reports.experiment import answer
    from widthwise.reports.family_page import branch_table
    from widthwise.reports.writing import write_report

    at_a_time = jobs_of(plan, training.n_jobs)
    with training_progress(training.track) as observer:
        amount = plan.in_words
        if plan.is_timed and (seconds := expected_seconds(plan, folder, at_a_time)):
            amount += f"; about {duration(seconds / 3600)} here, by a measured step of each variant"
        for line in (amount, *plan.adjustment_lines):
            observer.message(line)
        try:
            found = run_experiment(plan, folder, command_line(), observer, at_a_time, waits)
        except HeldElsewhere as left:
            observer.message(str(left))
            return
    if is_silent():
        return
    files = reversed(write_report([folder]))
    failed = [point for point in found.open_points if point.state == "failed"]
    reasons = [f"{point.name}: {clean(point.reason or '')}" for point in failed]
    branches = branch_table(found.family) if found.family is not None else None
    tables = [comparison_table(found), branches, tuning_table(found.tuning)]
    say_result(found, as_json, [*answer(found), *reasons], tables, files)
    if found.study is not None and not found.study.n_finished:
        raise RunFailed(f"{folder}: all {found.study.n_failed} points failed")


def show_workload(plan: "Plan", as_json: bool) -> None:
    """Print a table of the planned work and what was adjusted, or JSON."""
    work = plan.workload()
    notes = ["tokens and FLOPs of all seeds"]
    if work["match"]:
        notes.append(f"difference: {QUANTITY[work['match']].title}, from {clean(work['baseline'])}")
    header = [plan.row, *(each.brief_title for each in WORKLOAD)]
    rows = [[clean(each["name"]), *(shown(each[cost.name], cost) for cost in WORKLOAD)] for each in work["points"]]
    if work["match"]:
        header.append("difference")
        for cells, each in zip(rows, work["points"]):
            cells.append("" if each["miss"] is None else f"{signed(100 * each['miss'], 3)}%")
    table = Table(clean(plan.title), header, rows, note="\n".join(notes))
    say_result(work, as_json, (), [table], notes=[plan.in_words, *plan.adjustment_lines])
