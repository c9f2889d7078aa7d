"""`widthwise train`: a recipe -> a run directory."""

from pathlib import Path
from typing import Annotated

import typer

from widthwise.bundled import recipe_name
from widthwise.cli.run_result import show_result
from widthwise.cli.track import TrackOption, training_progress
from widthwise.config_io import UserError

DRY = "Dry run"


def train(
    recipe: Annotated[Path, typer.Argument(help="Recipe, such as configs/x_200m.yaml.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Changes, such as train.steps=2000.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; default: runs/RECIPE, or runs/RECIPE-VARIANT.")
    ] = None,
    variant: Annotated[
        str | None, typer.Option(help="Variant of a recipe with a compare section, or point of one with a sweep.")
    ] = None,
    track: TrackOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    is_dry: Annotated[
        bool, typer.Option("--dry-run", rich_help_panel=DRY, help="Train nothing: predict memory, traffic and time.")
    ] = False,
    devices: Annotated[
        str | None, typer.Option(rich_help_panel=DRY, help="Numbers of devices, such as 8,64,512; default: 1.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(rich_help_panel=DRY, help="A100, H100, H200 or B200: for time, and to refuse.")
    ] = None,
    mfu: Annotated[
        float | None, typer.Option(rich_help_panel=DRY, help="Share of the peak that training uses; default: 0.4.")
    ] = None,
    bandwidth: Annotated[
        str | None, typer.Option(rich_help_panel=DRY, help="GB/s a device sends in and between nodes, such as 450,50.")
    ] = None,
) -> None:
    """Train one recipe. Ctrl-C stops after a step and saves a checkpoint; `widthwise resume` continues from there.

    Example: `widthwise train configs/x_200m.yaml train.seed=1 --out runs/x-seed1`
    """
    from widthwise.experiments.recipes import read_one

    loaded = read_one(recipe, overrides or (), variant)
    asked = {"devices": devices, "device": device, "mfu": mfu, "bandwidth": bandwidth}
    if is_dry:
        from widthwise.cli.dry_run import show_dry_run

        show_dry_run(loaded, asked, as_json)
        return
    if unused := [name for name, value in asked.items() if value is not None]:
        raise UserError(f"--{unused[0]}: goes with --dry-run")
    from widthwise.runs.train import train as train_recipe

    folder = out or Path("runs") / "-".join(filter(None, [recipe_name(recipe), variant]))
    with training_progress(track) as observer:
        result = train_recipe(loaded, folder, observer)
    show_result(result, folder, as_json)
