"""`widthwise train`: a recipe -> a run directory."""

from pathlib import Path
from typing import Annotated

import typer

from widthwise.cli.run_result import show_result
from widthwise.cli.terminal import progress_console


def train(
    recipe: Annotated[Path, typer.Argument(help="Recipe, such as configs/x_200m.yaml.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Changes, such as train.steps=2000.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; default: runs/RECIPE.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train one recipe. Ctrl-C stops after a step and saves a checkpoint; `widthwise resume` continues from there.

    Example: `widthwise train configs/x_200m.yaml train.seed=1 --out runs/x-seed1`
    """
    from widthwise.cli.progress import shown_progress
    from widthwise.recipe.recipe import load_recipe
    from widthwise.runs.train import train as train_recipe

    loaded = load_recipe(recipe, overrides)
    folder = out or Path("runs") / recipe.stem
    with shown_progress(progress_console()) as observer:
        result = train_recipe(loaded, folder, observer)
    show_result(result, folder, as_json)
