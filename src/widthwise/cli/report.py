"""`widthwise report`: HTML, CSV and LaTeX from run directories."""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from widthwise.cli.terminal import remark, say, say_json
from widthwise.config_io import UserError


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...",
            help="One folder of a comparison, discovery, sweep, family, fit, analysis or evaluation, or several "
            "comparisons, or run directories.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Folder to write into; required for several runs or comparisons.", show_default=False
        ),
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
    watch: Annotated[
        int | None,
        typer.Option(
            "--watch",
            min=1,
            metavar="SECONDS",
            help="Write it anew so often until training ends; the page loads itself again.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the paths of the files as JSON.")] = False,
) -> None:
    """Write a report: one HTML page that opens offline, its tables as CSV and LaTeX, and optionally its figures.

    Example: `widthwise report runs/quickstart --figures pdf`
    """
    from widthwise.reports.writing import write_report

    write = partial(write_report, paths, out, figures, columns.split(",") if columns is not None else None)
    if watch is not None:
        _follow(paths, write, watch)
    files = [str(path) for path in write()]
    if as_json:
        say_json({"files": files})
    else:
        say(*files)


def _follow(paths: list[Path], write: Callable[..., list[Path]], seconds: int) -> None:
    """Writes a page again and again until what it shows has finished. Ctrl-C leaves one that stays as it is."""
    from widthwise.reports.writing import is_at_work

    if not is_at_work(paths):
        return
    page, *_ = write(refresh_seconds=seconds)
    remark(f"{page}: written every {seconds} s until training ends")
    try:
        while is_at_work(paths):
            time.sleep(seconds)
            with suppress(UserError):  # files that belong together may just be written
                write(refresh_seconds=seconds)
    except BaseException:
        write()
        raise
