"""The page of one item."""

from pathlib import Path

from widthwise.files import write_atomic
from widthwise.records.paper import PaperItem
from widthwise.reports.page.html import render
from widthwise.reports.paper.tables import item_table, size


def write_item_page(item: PaperItem, folder: Path) -> Path:
    """Writes `report.html` into the folder, and returns its path."""
    page = render(
        "paper/paper.html",
        title=f"{item.where} · {item.title} · widthwise",
        item=item,
        table=item_table(item),
        size=size(item),
    )
    write_atomic(folder / "report.html", page)
    return folder / "report.html"
