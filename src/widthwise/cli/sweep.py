"""`widthwise sweep`: a grid, or a search, over keys of a recipe."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from widthwise.cli.terminal import progress_console, say_json, table_console

if TYPE_CHECKING:
    from widthwise.experiments.sweep.plan import SweepPlan

WHAT, WORKERS, LADDER = "What to vary", "Workers", "A ladder of sizes"


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
    match: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=WHAT,
            help="What must match the baseline: params, active_params, flops, kv_bytes, training_flops, none.",
        ),
    ] = None,
    sampler: Annotated[
        str | None, typer.Option(rich_help_panel=WHAT, help="grid, tpe or random; default: grid, or tpe with --trials.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(rich_help_panel=WHAT, min=1, help="Points of a search, not counting the baseline.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder; default: runs/RECIPE.")] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=WORKERS,
            envvar="WIDTHWISE_STORAGE",
            show_envvar=True,
            help="Database, such as postgresql+psycopg://USER@HOST/NAME; default: a file in the folder.",
        ),
    ] = None,
    study: Annotated[
        str | None, typer.Option(rich_help_panel=WORKERS, help="Name of the study in the database; default: RECIPE.")
    ] = None,
    heartbeat: Annotated[
        int,
        typer.Option(
            rich_help_panel=WORKERS,
            min=1,
            help="Seconds between a worker's heartbeats; after missing three it counts as dead.",
        ),
    ] = 60,
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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the planned work, and train nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the sweep, or the dry run, as JSON.")] = False,
) -> None:
    """Train every combination of values, or those a sampler chooses, with several seeds, and rank the points.

    The same command continues an interrupted sweep; started several times, on one machine or with --storage on several
    that share the folder, it divides the work. Failed points are kept with the reason.

    Example: `widthwise sweep configs/sweep_shapes.yaml`, `widthwise sweep configs/small.yaml --over
    optimizer.lr=0.002,0.004`
    """
    from widthwise.cli.ladder import clock_asked, ladder_asked, show_ladder
    from widthwise.cli.sweep_table import workload_table
    from widthwise.experiments.sweep.plan import read_axes, read_sweep

    asked: dict[str, Any] = {
        "over": over and read_axes(over),
        "seeds": seed,
        "match": match,
        "search": _search(sampler, trials),
    }
    asked = {key: value for key, value in asked.items() if value}
    if sampler == "grid":
        asked["search"] = None
    clock = clock_asked(device, mfu, flops_per_second, is_wanted=ladder and dry_run)
    if ladder:
        plan = ladder_asked(recipe, overrides or (), asked)
        if dry_run:
            show_ladder(plan, clock, as_json)
            return
    else:
        plan = read_sweep(recipe, overrides or (), asked)
    if not dry_run:
        _run_and_report(plan, out or Path("runs") / plan.title, storage, study, heartbeat, as_json)
    elif as_json:
        say_json(plan.workload())
    else:
        table_console().print(workload_table(plan.title, plan.workload()))


def _search(sampler: str | None, trials: int | None) -> dict[str, Any]:
    asked = {"sampler": None if sampler == "grid" else sampler, "n_trials": trials}
    return {key: value for key, value in asked.items() if value is not None}


def _run_and_report(
    plan: "SweepPlan", folder: Path, storage: str | None, study: str | None, heartbeat: int, as_json: bool
) -> None:

    from widthwise.cli.progress import shown_progress
    from widthwise.cli.sweep_table import failure_lines, sweep_table, workload_line
    from widthwise.experiments.sweep.storage import Heartbeat
    from widthwise.experiments.sweep.worker import run_sweep
    from widthwise.reports.writing import check_kind, write_report
    from widthwise.run_dir import RunFailed
    from widthwise.runs.environment import command_line

    check_kind(folder, "sweep.json")
    with shown_progress(progress_console()) as observer:
        observer.message(workload_line(plan.workload()))
        found = run_sweep(plan, folder, command_line(), storage, study, Heartbeat(heartbeat), observer)
    files = write_report([folder])
    if as_json:
        say_json(found)
    else:
        console = table_console()
        console.print(sweep_table(found))
        console.print(found.sentence)
        for line in (*failure_lines(found), *(f"wrote {file}" for file in files)):
            console.print(line, soft_wrap=True)
    if not found.study.n_finished:
        raise RunFailed(f"{folder}: all {found.study.n_failed} points failed")
