"""`widthwise init`: the recipes that come with the package, to read and to change."""

from pathlib import Path
from typing import Annotated

import typer

from widthwise.cli.terminal import say

FIRST = "quickstart.yaml"


def init(folder: Annotated[Path, typer.Argument(help="New folder for the recipes.")] = Path("configs")) -> None:
    """Copy the recipes that come with the package into a folder, to start from.

    Every command takes them by name without this too: `widthwise inspect x_200m`.

    Example: `widthwise init && widthwise compare configs/quickstart.yaml`
    """
    from widthwise.recipe.starting import copy_recipes

    n_recipes = copy_recipes(folder)
    say(
        f"wrote {n_recipes} recipes to {folder}",
        f"  widthwise inspect {folder / 'x_200m.yaml'}    what a model costs, layer by layer",
        f"  widthwise train {folder / 'smoke.yaml'}    a first run, in seconds",
        f"  widthwise compare {folder / FIRST}    five kinds of width at equal size, in minutes",
    )
