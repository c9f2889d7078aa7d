"""`widthwise report`: HTML, CSV and LaTeX from run directories."""

import json
from pathlib import Path
from typing import Annotated

import typer


def report(
    paths: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="One folder of a comparison, or one or more run directories.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="The folder to write into; several runs need it.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the paths of the files as JSON.")] = False,
) -> None:
    """Write a report: one HTML page that opens offline, and for a comparison also a CSV and a LaTeX table.

    Example: `widthwise report runs/quickstart`
    """
    from widthwise.reports.writing import write_report

    files = [str(path) for path in write_report(paths, out)]
    print(json.dumps({"files": files}) if as_json else "\n".join(files))
