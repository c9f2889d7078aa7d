"""`widthwise runs`: what there is, and how far it has come."""

from pathlib import Path
from typing import Annotated

import typer

from widthwise.cli.tables import say_tables
from widthwise.cli.terminal import remark, say_json
from widthwise.records.listing import ListedRun
from widthwise.reports.page.formats import MISSING, counted, duration, fixed, si
from widthwise.reports.page.table import Table


def runs(
    folder: Annotated[Path, typer.Argument(help="Folder that holds runs or experiments.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the listing as JSON.")] = False,
) -> None:
    """List runs: which are running, finished, stopped, failed or waiting, their steps, losses, rate, age and size.

    Example: `widthwise runs runs/quickstart`
    """
    from widthwise.runs.listing import list_runs

    found = list_runs(folder)
    if as_json:
        say_json({"runs": [each.to_data() for each in found]})
        return
    header = ["Run", "State", "Step", "Loss", "Held-out loss", "Tokens/s", "Age", "Size"]
    rows = [_row(each, folder) for each in found]
    say_tables(Table(f"{counted(len(found), 'run')} in {folder}", header, rows, words=["State"]))
    for each in found:
        if each.reason is not None:
            remark(each.reason if each.state == "unreadable" else f"{each.path}: {each.reason}")


def _row(run: ListedRun, folder: Path) -> list[str]:
    path = Path(run.path)
    step = MISSING if run.step is None else f"{run.step:,}"
    return [
        str(path.relative_to(folder)) if path != folder else str(path),
        run.state,
        step if run.n_steps is None else f"{step}/{run.n_steps:,}",
        fixed(run.loss, 4),
        fixed(run.val_loss, 4),
        si(run.tokens_per_second),
        duration(None if run.age_seconds is None else run.age_seconds / 3600),
        MISSING if run.n_bytes is None else f"{si(run.n_bytes)}B",
    ]
