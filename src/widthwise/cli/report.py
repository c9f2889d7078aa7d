"""`widthwise report`: HTML, CSV and LaTeX from run directories."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from widthwise.cli.terminal import say, say_json


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...",
            help="One folder of a comparison, sweep, fit or analysis, or one or more run directories.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder to write into; required for several runs.", show_default=False)
    ] = None,
    figures: Annotated[
        Literal["svg", "pdf"] | None,
        typer.Option("--figures", help="Also write each figure of the page to a file.", show_default=False),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns",
            help="Quantities of the main table of a comparison, sweep or family, such as val_loss,layer_params.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the paths of the files as JSON.")] = False,
) -> None:
    """Write a report: one HTML page that opens offline, its tables as CSV and LaTeX, and optionally its figures.

    Example: `widthwise report runs/quickstart --figures pdf`
    """
    from widthwise.reports.writing import write_report

    files = [
        str(path) for path in write_report(paths, out, figures, columns.split(",") if columns is not None else None)
    ]
    if as_json:
        say_json({"files": files})
    else:
        say(*files)
