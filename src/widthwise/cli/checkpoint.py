"""`widthwise checkpoint`: what can be done with the checkpoints of a run."""

from pathlib import Path
from typing import Annotated

import typer

from widthwise.cli.terminal import say

checkpoint_app = typer.Typer(
    help="Work on the checkpoints of a run.", no_args_is_help=True, rich_markup_mode="markdown"
)


@checkpoint_app.callback()
def _checkpoint() -> None:
    """Work on the checkpoints of a run."""


@checkpoint_app.command()
def merge(run: Annotated[Path, typer.Argument(help="Run directory, such as runs/x_2b.")]) -> None:
    """Put checkpoints that several processes wrote into one file of weights and one of optimizer state.

    widthwise reads both forms; other programs may want one file.

    Example: `widthwise checkpoint merge runs/x_2b`
    """
    from widthwise.runs.trained import merge as merge_checkpoints

    merged = merge_checkpoints(run)
    say(*(f"{path}: merged" for path in merged))
    if not merged:
        say(f"{run}: every checkpoint has its weights in one file already")
