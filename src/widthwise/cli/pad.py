"""`widthwise pad`: a run -> the same model with sizes rounded up for hardware."""

from pathlib import Path
from typing import Annotated

import typer

from widthwise.cli.growth_result import show_growth
from widthwise.cli.terminal import progress_console


def pad(
    run: Annotated[Path, typer.Argument(help="Run directory; its newest good checkpoint is padded.")],
    out: Annotated[Path, typer.Option(help="Folder of the new run.")],
    d_ff_multiple: Annotated[
        int, typer.Option(min=1, max=65_536, help="Round hidden units up to a multiple of this.")
    ] = 1,
    head_dim_multiple: Annotated[
        int, typer.Option(min=1, max=65_536, help="Round head sizes up to a multiple of this.")
    ] = 1,
    heads_multiple: Annotated[
        int,
        typer.Option(
            min=1,
            max=65_536,
            help="Round heads up to a multiple of this; key-value heads to a multiple or divisor of it.",
        ),
    ] = 1,
    d_model_multiple: Annotated[
        int, typer.Option(min=1, max=65_536, help="Round all widths of the stream up to a multiple of this.")
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Round sizes up for kernels and tensor parallelism, with entries that are 0 and do not learn (those of `grow` do).

    Example: `widthwise pad runs/large --d-ff-multiple 64 --out runs/large-padded`
    """
    from widthwise.cli.progress import shown_progress
    from widthwise.growth.pad import Multiples
    from widthwise.runs.conversion import carry_out
    from widthwise.runs.grow import pad_intended
    from widthwise.runs.trained import Source

    source = Source.of(run)
    multiples = Multiples(d_ff_multiple, head_dim_multiple, heads_multiple, d_model_multiple)
    with shown_progress(progress_console()) as observer:
        found = carry_out(source, pad_intended(source, multiples), out, observer)
    show_growth(found, as_json)
