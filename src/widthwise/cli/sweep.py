"""`widthwise sweep`: a grid, or a search, over keys of a recipe."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from widthwise.cli.experiment import (
    AdjustOption,
    DryRunOption,
    JobsOption,
    MatchOption,
    WorkerOption,
    jobs_asked,
    show_workload,
    workload_line,
)
from widthwise.cli.progress import TrackerName, TrackOption, training_progress
from widthwise.cli.terminal import remark, say, say_json, say_tables, table_console
from widthwise.records.quantities import QUANTITY
from widthwise.records.sweep import FinishedPoint, Sweep
from widthwise.reports.comparison.main_table import doubts, marked
from widthwise.reports.page.formats import clean, interval, percentage, ratio, shown
from widthwise.reports.page.table import Table
from widthwise.training.launch import is_silent

if TYPE_CHECKING:
    from widthwise.experiments.experiment import Experiment

WHAT, SEARCH, LADDER = "What to vary", "A search", "A ladder of sizes"
LOSS, DIFFERENCE, PARAMS = (QUANTITY[name] for name in ("val_loss", "difference", "params"))
RATIOS = [QUANTITY[name] for name in ("training_flops", "kv_bytes")]


def sweep(
    recipe: Annotated[Path, typer.Argument(help="Recipe with a sweep section, or any recipe with --over.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes to the recipe and so to every point, such as train.steps=200.")
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=WHAT,
            help="optimizer.lr=0.002,0.004, or a range to search: 'optimizer.lr={low: 1e-4, high: 1e-2, log: true}'.",
        ),
    ] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option(rich_help_panel=WHAT, help="Seed, repeat for several; default: the recipe's, or 1, 2 and 3."),
    ] = None,
    match: MatchOption = None,
    adjust: AdjustOption = None,
    sampler: Annotated[
        str | None,
        typer.Option(rich_help_panel=SEARCH, help="grid, tpe or random; default: grid, or tpe with --trials."),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(rich_help_panel=SEARCH, min=1, help="Points of a search, not counting the baseline.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder; default: runs/RECIPE.")] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=SEARCH,
            envvar="WIDTHWISE_STORAGE",
            show_envvar=True,
            help="Database for the study, such as postgresql+psycopg://USER@HOST/NAME; default: a file in the folder.",
        ),
    ] = None,
    study: Annotated[
        str | None, typer.Option(rich_help_panel=SEARCH, help="Name of the study in the database; default: RECIPE.")
    ] = None,
    jobs: JobsOption = "auto",
    worker: WorkerOption = False,
    track: TrackOption = None,
    ladder: Annotated[
        bool, typer.Option("--ladder", rich_help_panel=LADDER, help="Train the sizes of the recipe's ladder section.")
    ] = False,
    device: Annotated[
        str | None, typer.Option(rich_help_panel=LADDER, help="GPU for which --dry-run counts hours, such as h200.")
    ] = None,
    mfu: Annotated[
        float | None, typer.Option(rich_help_panel=LADDER, help="Share of its bf16 peak in use; default: 0.4.")
    ] = None,
    flops_per_second: Annotated[
        float | None, typer.Option(rich_help_panel=LADDER, help="Measured rate, instead of a device.")
    ] = None,
    days: Annotated[
        float | None, typer.Option(rich_help_panel=LADDER, help="Days that a run may take; longer ones are remarked.")
    ] = None,
    dry_run: DryRunOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the sweep, or the dry run, as JSON.")] = False,
) -> None:
    """Train every combination of values, or those a sampler chooses, with several seeds, and rank the points.

    The same command continues an interrupted sweep; started several times, on one machine or on several that share the
    folder, it divides the runs. Failed points are kept with the reason.

    Example: `widthwise sweep configs/sweep_shapes.yaml`, `widthwise sweep configs/small.yaml --over
    optimizer.lr=0.002,0.004`
    """
    from widthwise.cli.ladder import clock_asked, ladder_asked, show_ladder
    from widthwise.experiments.sweep import read_axes, read_sweep

    asked: dict[str, Any] = {
        "over": over and read_axes(over),
        "seeds": seed,
        "match": match,
        "adjust": adjust,
        "search": _search(sampler, trials),
    }
    asked = {key: value for key, value in asked.items() if value}
    if sampler == "grid":
        asked["search"] = None
    clock = clock_asked(device, mfu, flops_per_second, days, is_wanted=ladder and dry_run)
    if ladder:
        plan = ladder_asked(recipe, overrides or (), asked)
        if dry_run:
            show_ladder(plan, clock, days, as_json)
            return
    else:
        plan = read_sweep(recipe, overrides or (), asked)
    if (storage or study) and plan.space is None:
        remark("--storage and --study are of a search; this sweep chooses no points, and needs neither")
    if dry_run:
        show_workload(plan.workload(), plan.title, "point", plan.adjustment_lines, as_json)
        return
    _run_and_report(
        plan, out or Path("runs") / plan.title, storage, study, jobs_asked(jobs), as_json, track, is_worker=worker
    )


def _search(sampler: str | None, trials: int | None) -> dict[str, Any]:
    asked = {"sampler": None if sampler == "grid" else sampler, "n_trials": trials}
    return {key: value for key, value in asked.items() if value is not None}


def _run_and_report(
    plan: "Experiment",
    folder: Path,
    storage: str | None,
    study: str | None,
    n_jobs: int | None,
    as_json: bool,
    track: Sequence[TrackerName] | None,
    is_worker: bool,
) -> None:
    from widthwise.experiments.jobs import Jobs
    from widthwise.experiments.running import run_sweep
    from widthwise.experiments.scheduler import HeldElsewhere
    from widthwise.reports.writing import check_kind, write_report
    from widthwise.run_dir import RunFailed
    from widthwise.runs.environment import command_line

    check_kind(folder, "sweep.json")
    jobs = Jobs.of([plan.reference, *plan.recipes.values()], plan.n_points * len(plan.seeds), n_jobs)
    with training_progress(track) as observer:
        for line in (*plan.adjustment_lines, workload_line(plan.workload(), "point")):
            observer.message(line)
        try:
            found = run_sweep(plan, folder, command_line(), storage, study, observer, jobs, waits=not is_worker)
        except HeldElsewhere as left:
            observer.message(str(left))
            return
    if is_silent():
        return
    files = write_report([folder])
    if as_json:
        say_json(found)
    else:
        say_tables(sweep_table(found))
        table_console().print(found.sentence)
        say(*_failures(found), *(f"wrote {file}" for file in files))
    if not found.study.n_finished:
        raise RunFailed(f"{folder}: all {found.study.n_failed} points failed")


def sweep_table(found: Sweep) -> Table:
    """The content of sweep.json, the lowest loss first; what has not finished stands below."""
    rows = [_cells(point) for point in found.variants] + [[clean(each.name), each.state] for each in found.open_points]
    header = ["point", LOSS.brief_title, DIFFERENCE.title, "verdict", PARAMS.brief_title]
    header += [each.brief_title for each in RATIOS]
    note = ""
    if found.baseline_words:
        ratios = " and ".join(each.brief_title for each in RATIOS)
        note = f"{percentage(found.confidence)} intervals; {ratios}: ratio to {clean(found.baseline_words)}"
    return Table(clean(found.title), header, rows, words={"verdict"}, note="\n".join([note, *doubts(found)]).strip())


def _cells(point: FinishedPoint) -> list[str]:
    ends = interval(point.difference, 3, with_sign=True) if point.difference else ""
    difference = shown(point.difference.mean, DIFFERENCE) if point.difference else ""
    return [
        marked(point),
        shown(point.val_loss.mean, LOSS),
        f"{difference} ({ends})" if ends else difference,
        point.verdict or "",
        shown(PARAMS.value(point), PARAMS),
        *(ratio(point.ratio.get(each.name), sign="") for each in RATIOS),
    ]


def _failures(found: Sweep) -> list[str]:
    """Why points failed."""
    return [f"{point.name}: {clean(point.reason or '')}" for point in found.open_points if point.state == "failed"]
