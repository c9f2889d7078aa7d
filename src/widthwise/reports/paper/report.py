"""The page of one item."""

from dataclasses import replace
from pathlib import Path

from widthwise.files import write_atomic
from widthwise.records.paper import PaperItem
from widthwise.reports.page.html import render
from widthwise.reports.page.table import Table
from widthwise.reports.paper.tables import item_table, size


def write_item_page(item: PaperItem, path: Path) -> None:
    """Writes the page, whole or not at all."""
    write_atomic(path, _page(item))


def _page(item: PaperItem) -> str:
    return render(
        "paper/paper.html",
        title=f"{item.where} · {item.title} · widthwise",
        item=item,
        table=_on_one_line(item_table(item)),
        size=size(item),
    )


def _on_one_line(table: Table) -> Table:
    """With the details of a cell, here the interval of a mean, in parentheses."""
    rows = [[f"{cell.replace(chr(10), ' (')})" if "\n" in cell else cell for cell in row] for row in table.rows]
    return replace(table, rows=rows)
