"""`widthwise bake`: a grown run -> the same run with the constants that its sizes imply."""

from pathlib import Path
from typing import Annotated

import typer

from widthwise.cli.growth_result import show_growth
from widthwise.cli.terminal import progress_console


def bake(
    run: Annotated[Path, typer.Argument(help="Run directory; its newest good checkpoint is baked.")],
    out: Annotated[Path, typer.Option(help="Folder of the new run.")],
    one_eps: Annotated[
        bool,
        typer.Option("--one-eps", help="Leave the eps of norms alone, for formats with one eps for the whole model."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Fold the constants that growth kept into the weights, so that attention scale and norms are the usual ones.

    Example: `widthwise bake runs/large --out runs/large-baked`
    """
    from widthwise.cli.progress import shown_progress
    from widthwise.runs.conversion import carry_out
    from widthwise.runs.grow import bake_intended
    from widthwise.runs.trained import Source

    source = Source.of(run)
    with shown_progress(progress_console()) as observer:
        found = carry_out(source, bake_intended(source, one_eps), out, observer)
    show_growth(found, as_json)
