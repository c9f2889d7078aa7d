"""Points of a law from a user's table."""

import csv
from pathlib import Path

from widthwise.config_io import UserError, nearest_hint
from widthwise.experiments.scaling.points import Axes, Found, checked_point
from widthwise.files import read_text

BYTE_ORDER_MARK = "\ufeff"
"""Written by spreadsheets before the first character."""


def read_table(path: Path, axes: Axes) -> list[Found]:
    """The points of a table with a header; empty lines and lines that begin with # are ignored.

    Rows that agree in group, x and the column `name`, if there is one, are seeds of one point. Without a column to
    group by, one curve goes through all. Raises UserError naming the line of a mistake.
    """
    lines = [
        (number, _cells(line, f"{path}: line {number}"))
        for number, line in enumerate(read_text(path).removeprefix(BYTE_ORDER_MARK).splitlines(), start=1)
        if line.strip() and not line.startswith("#")
    ]
    if not lines:
        raise UserError(f"{path}: holds no table; expected a line of column names")
    header = [name.strip() for name in lines[0][1]]
    if len(set(header)) < len(header):
        raise UserError(f"{path}: two columns have the same name ({', '.join(header)})")
    for option, column in (("--x", axes.x), ("--y", axes.y), ("--group-by", axes.group_by)):
        if column is not None and column not in header:
            raise UserError(f"{path}: {option}: got {column!r}; {nearest_hint(column, header)}")
    seeds: dict[tuple[str, str, float], list[float]] = {}
    for number, cells in lines[1:]:
        where = f"{path}: line {number}"
        if len(cells) != len(header):
            raise UserError(f"{where}: has {len(cells)} cells; expected {len(header)} ({', '.join(header)})")
        row = dict(zip(header, (cell.strip() for cell in cells)))
        x, y = (_cell(row, column, where) for column in (axes.x, axes.y))
        group = path.stem if axes.group_by is None else row[axes.group_by]
        checked_point("", x, [y], where, axes)
        seeds.setdefault((group, row.get("name") or f"line {number}", x), []).append(y)
    if not seeds:
        raise UserError(f"{path}: has column names but no rows")
    return [Found(group, checked_point(name, x, ys, str(path), axes)) for (group, name, x), ys in seeds.items()]


def _cells(line: str, where: str) -> list[str]:
    try:
        return next(csv.reader([line]))
    except csv.Error as error:  # a cell is longer than any number or name
        raise UserError(f"{where}: cannot be read ({error})") from None


def _cell(row: dict[str, str], column: str, where: str) -> float:
    try:
        return float(row[column])
    except ValueError:
        raise UserError(f"{where}: {column} is {row[column]!r}, not a number") from None
