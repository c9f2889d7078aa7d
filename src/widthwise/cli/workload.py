"""The planned work of a comparison or sweep on the terminal: what --dry-run shows."""

from collections.abc import Iterable
from typing import Any, Literal

from widthwise.cli.terminal import say, say_json, say_tables
from widthwise.records.quantities import QUANTITY
from widthwise.reports.page.formats import clean, shown, si, signed
from widthwise.reports.page.table import Table

COLUMNS = [QUANTITY[name] for name in ("params", "steps", "tokens", "training_flops")]

Row = Literal["point", "variant"]
"""What a line of the table is called."""


def show_workload(
    workload: dict[str, Any], title: str, row: Row, adjustment_lines: Iterable[str], as_json: bool
) -> None:
    """Prints a table of the planned work and what was adjusted, or JSON. workload: of `counted_work`."""
    if as_json:
        say_json(workload)
        return
    say_tables(workload_table(workload, title, row))
    for line in adjustment_lines:
        say(line)


def workload_table(workload: dict[str, Any], title: str, row: Row) -> Table:
    """A line for each point or variant. Those of a search are not known in advance: one line represents all."""
    header = [row, *(each.brief_title for each in COLUMNS)]
    rows = [[clean(each["name"]), *(shown(each[cost.name], cost) for cost in COLUMNS)] for each in workload["points"]]
    notes = ["tokens and FLOPs of all seeds"]
    if workload["match"]:
        header.append("difference")
        rows = [[*cells, _miss(each["miss"])] for cells, each in zip(rows, workload["points"])]
        notes.append(f"difference: {QUANTITY[workload['match']].title}, from {clean(workload['baseline'])}")
    return Table(clean(title), header, rows, note="\n".join([*notes, workload_line(workload, row)]))


def workload_line(workload: dict[str, Any], row: Row) -> str:
    """The amount of work in one line."""
    return (
        f"{workload['n_points']} {row}s x {workload['n_seeds']} seeds: {workload['n_runs']} runs, "
        f"together about {si(workload['training_flops'])} training FLOPs"
    )


def _miss(miss: float | None) -> str:
    return "" if miss is None else f"{signed(100 * miss, 3)}%"
