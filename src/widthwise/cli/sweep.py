"""`widthwise sweep`, a grid or a search over keys of a recipe, or sizes with rungs; and `widthwise fit`, scaling laws
through trained models, with intervals."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import PositiveInt

from widthwise.cli.experiment import (
    WORKERS,
    ExperimentOptions,
    WorkerOptions,
    run_and_report,
    show_workload,
)
from widthwise.cli.options import Changes, JsonOption
from widthwise.cli.progress import shown_progress
from widthwise.cli.terminal import progress_console, say_result
from widthwise.config_io import Config
from widthwise.mistakes import UserError
from widthwise.records.outcome import Outcome
from widthwise.runs.environment import command_line


class SweepOptions(ExperimentOptions):
    """Options that replace settings of a sweep's recipe."""

    over: tuple[str, ...] = ()
    """optimizer.lr=0.002,0.004, or a range to search: 'optimizer.lr={low: 1e-4, high: 1e-2, log: true}'."""


class SearchOptions(Config):
    """A search that chooses points, instead of a grid."""

    sampler: Literal["grid", "tpe", "random"] | None = None
    """Sampler of the points; default: grid, or tpe with --trials."""
    trials: PositiveInt | None = None
    """Points of a search, without the baseline."""


def sweep(
    recipe: Annotated[Path, typer.Argument(help="Recipe with a sweep section, or any recipe with --over.")],
    options: SweepOptions,
    search: Annotated[SearchOptions, "A search"],
    training: Annotated[WorkerOptions, WORKERS],
    overrides: Changes = None,
    as_json: JsonOption = False,
) -> None:
    """Train every combination of values, or the points of a sampler, with several seeds, and rank the points.

    Changes apply to the recipe, and so to every point.

    The same command continues an interrupted sweep; several processes of the command, on machines that share the
    folder, divide the runs. Failed points are recorded with the reason.

    Example: `widthwise sweep configs/sweep_shapes.yaml`, `widthwise sweep configs/small.yaml --over
    optimizer.lr=0.002,0.004`
    """
    from widthwise.experiments.sweep import read_axes, read_sweep

    is_grid = search.sampler == "grid"
    chosen = {"sampler": None if is_grid else search.sampler, "n_trials": search.trials}
    changes: dict[str, Any] = {
        "over": read_axes(options.over),
        "seeds": [*options.seeds],
        "match": options.match,
        "adjust": options.adjust,
        "search": {key: value for key, value in chosen.items() if value is not None},
    }
    changes = {key: value for key, value in changes.items() if value} | ({"search": None} if is_grid else {})
    plan = read_sweep(recipe, overrides or (), changes)
    if options.dry_run:
        show_workload(plan, as_json)
        return
    from widthwise.reports.writing import check_kind  # imports torch, which a dry run does not need

    folder = options.out or Path("runs") / plan.title
    check_kind(folder, Outcome.file_name)  # unlike a comparison, a sweep must not share the folder of a run
    run_and_report(plan, folder, as_json, training, not training.worker)


class FitOptions(Config):
    """The axes, groups, law and folder of a fit."""

    x: str = "training_flops"
    """training_flops, tokens, params, layer_params, average_width, kv_bytes ..., or a column."""
    x2: str | None = None
    """Second variable for --law chinchilla, such as tokens with --x params."""
    y: str = "val_loss"
    """val_loss, val_loss_next_2, train_loss, val_bits_per_byte, or a column."""
    group_by: Annotated[str | None, typer.Option("--group", "--group-by")] = None
    """One curve for each value of this column or recipe key."""
    baseline: str | None = None
    """Group with which the rest are compared; default: the baseline of the comparisons."""
    law: str | None = None
    """power, power_irreducible or log_linear; default: the law that predicts left-out points best. Or parabola, one for
    each compute budget of --group (isoFLOP), or chinchilla, with two variables."""
    out: Path | None = None
    """Folder; default: runs/fit-NAMES-Y-X."""


def fit(
    paths: Annotated[list[Path], typer.Argument(help="Comparisons, sweeps, runs, or your own .csv tables.")],
    options: FitOptions,
    as_json: JsonOption = False,
) -> None:
    """Fit the loss as a function of compute, parameters or width, with intervals, and the savings at equal loss.

    Example: `widthwise fit runs/ladder_small --x training_flops --y val_loss --baseline uniform`
    """
    from widthwise.experiments.fitting import fit_groups
    from widthwise.experiments.scaling_points import Axes, gather
    from widthwise.reports.scaling import law_tables, saving_table, scaling_answer
    from widthwise.reports.writing import check_kind, write_report

    title = "-".join(path.stem if path.suffix == ".csv" else path.resolve().name for path in paths)
    folder = options.out or Path("runs") / f"fit-{title}-{options.y}-{options.x}"
    check_kind(folder, "scaling.json")
    if options.baseline and options.law in ("parabola", "chinchilla"):
        raise UserError(f"--baseline: got {options.baseline}; --law {options.law} computes no savings over one")
    axes = Axes(options.x, options.y, options.group_by, options.x2)
    gathered = gather(paths, axes, options.baseline)
    with shown_progress(progress_console()) as observer:
        scaling = fit_groups(gathered, title, command_line(), options.law, observer)
    files = [scaling.write(folder), *reversed(write_report([folder]))]
    laws = [(group.name, kind, law) for group in scaling.groups for kind, law in group.fits.items()]
    doubts = [f"{name}: {kind}: {law.reason}." for name, kind, law in laws if law.reason]
    say_result(
        scaling,
        as_json,
        [*scaling_answer(scaling), *doubts],
        [*law_tables(scaling), saving_table(scaling)],
        files,
    )
