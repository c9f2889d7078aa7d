"""`widthwise sweep`: a grid, or a search, over keys of a recipe; with `--ladder` variants at several sizes."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from widthwise.cli.experiment import (
    AdjustOption,
    DryRunOption,
    JobsOption,
    MatchOption,
    WorkerOption,
    run_and_report,
    show_workload,
)
from widthwise.cli.progress import TrackOption
from widthwise.cli.terminal import remark, say, say_json, say_tables
from widthwise.config_io import UserError
from widthwise.records.quantities import QUANTITY
from widthwise.reports.formats import clean, duration, shown
from widthwise.reports.table import Table

if TYPE_CHECKING:
    from widthwise.experiments.experiment import Experiment
    from widthwise.training.devices import Device

WHAT, SEARCH, LADDER = "What to vary", "A search", "A ladder of sizes"
COLUMNS = [QUANTITY[name] for name in ("params", "layer_params", "average_width", "tokens", "steps", "training_flops")]


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
    from widthwise.experiments.ladder import read_ladder
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
    clock = _clock(device, mfu, flops_per_second, days, is_wanted=ladder and dry_run)
    if ladder:
        if other := sorted(set(asked) - {"seeds"}):
            rest = ", ".join(other)
            raise UserError(f"--ladder: the ladder section of the recipe says what to train; leave out {rest}")
        plan = read_ladder(recipe, overrides or (), seed or ())
        if dry_run:
            _show_ladder(plan, clock, days, as_json)
            return
    else:
        plan = read_sweep(recipe, overrides or (), asked)
    if (storage or study) and plan.space is None:
        remark("--storage and --study are of a search; this sweep chooses no points, and needs neither")
    if dry_run:
        show_workload(plan.workload(), plan.title, "point", plan.adjustment_lines, as_json)
        return
    run_and_report(plan, out or Path("runs") / plan.title, as_json, jobs, track, worker, storage, study)


def _search(sampler: str | None, trials: int | None) -> dict[str, Any]:
    asked = {"sampler": None if sampler == "grid" else sampler, "n_trials": trials}
    return {key: value for key, value in asked.items() if value is not None}


def _clock(
    device: str | None, mfu: float | None, flops_per_second: float | None, days: float | None, is_wanted: bool
) -> "Device | None":
    """The device for which hours are counted, if any. Raises UserError if options conflict."""
    given = {"--device": device, "--mfu": mfu, "--flops-per-second": flops_per_second, "--days": days}
    named = [option for option, value in given.items() if value is not None]
    if named and not is_wanted:
        raise UserError(f"{named[0]}: goes with --ladder --dry-run, which counts hours by it")
    if mfu is not None and device is None:
        raise UserError(f"--mfu: got {mfu:g}; it is a share of the peak of a --device")
    if device is not None and flops_per_second is not None:
        raise UserError("--flops-per-second: conflicts with --device; give one of the two")
    if days is not None and not days > 0:
        raise UserError(f"--days: got {days:g}; must be above 0")
    if days is not None and device is None and flops_per_second is None:
        raise UserError(f"--days: got {days:g}; it needs a --device or --flops-per-second")
    from widthwise.training.devices import DEVICES, Device

    if flops_per_second is not None:
        return Device.at_rate(flops_per_second)
    if device is None:
        return None
    found = Device.named(device, mfu, DEVICES, "; for any other device give --flops-per-second")
    return replace(found, name=found.speed)


def _show_ladder(plan: "Experiment", clock: "Device | None", days: float | None, as_json: bool) -> None:
    """Prints the planned work. days: what a run may take."""
    from widthwise.experiments.ladder import ladder_workload

    workload = ladder_workload(plan, clock, days)
    if as_json:
        say_json(workload)
    else:
        say_tables(ladder_table(workload))
        for line in plan.adjustment_lines:
            say(line)
        for each in workload["remarks"]:
            say(f"remark: {each}")


def ladder_table(workload: dict[str, Any]) -> Table:
    """One row per point, for one run of it, from `experiments.ladder.ladder_workload`."""
    total = shown(workload["training_flops"], COLUMNS[-1])
    rows = [
        [row["name"], *(shown(row[each.name], each) for each in COLUMNS), duration(row["hours"])]
        for row in workload["points"]
    ]
    rows += [[], ["all seeds", *[""] * (len(COLUMNS) - 1), total, duration(workload["hours"])]]
    title = f"{clean(workload['title'])}: {workload['n_runs']} runs, {len(workload['seeds'])} of each line"
    return Table(title, ["", *(each.brief_title for each in COLUMNS), "time"], rows, note=_note(workload))


def _note(workload: dict[str, Any]) -> str:
    tokens, counted = workload["tokens_per_param"], workload["count"].replace("params", "parameter").replace("_", " ")
    rule = (
        "steps as the recipe says" if tokens is None else f"{tokens:g} tokens per {counted} of a rung's first variant"
    )
    device = "time needs --device or --flops-per-second" if workload["device"] is None else workload["device"]
    return f"{rule}\n{device}"
