"""Records in notebooks: the first screen of the page, with figures as images and without scripts."""

from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path

from markupsafe import Markup

from widthwise.records.record import StoredRecord, register_notebook_view
from widthwise.records.run import RunResult
from widthwise.reports.charts import COLOURS, Figure
from widthwise.reports.formats import clean
from widthwise.reports.run import runs_page
from widthwise.reports.table import Table
from widthwise.reports.writing import PAGES

N_TABLES = 2
"""Number of tables; for a comparison these are losses and costs."""
_PICTURE = Markup('<img alt="{}" src="data:image/svg+xml;base64,{}">')
_TABLE = Markup("<table><caption>{}</caption><thead><tr>{}</tr></thead><tbody>{}</tbody></table>")
_ALL = Markup('<div style="background: {}; color: {}"><p><b>{}</b></p>{}{}{}</div>')


def html(record: StoredRecord, folder: Path) -> str | None:
    """Return the answer, the first figures and the main tables of the page of a record; None if it has no page.

    folder: folder of the record. Raises UserError if the folder or a run on the page is missing or broken.
    """
    if isinstance(record, RunResult):
        page = runs_page([folder])
    elif record.file_name in PAGES:
        page = PAGES[record.file_name](folder)
    else:
        return None
    figures = [part for part in page.first if isinstance(part, Figure)]
    parts = [part for section in page.sections if section is not None for part in section.parts]
    tables = [part for part in parts if isinstance(part, Table) and not part.is_folded]
    pictures = [_PICTURE.format(clean(figure.label), b64encode(figure.document("svg")).decode()) for figure in figures]
    shown = _ALL.format(
        COLOURS["card"][0],
        COLOURS["ink"][0],
        clean(page.title),
        _joined("p", [*page.answer, *page.badges]),
        Markup().join(pictures),
        Markup().join(map(_table, tables[:N_TABLES])),
    )
    return str(shown)


def _table(table: Table) -> Markup:
    rows = (_joined("td", row) for row in table.rows)
    return _TABLE.format(table.caption, _joined("th", table.header), _joined("tr", rows))


def _joined(tag: str, texts: Iterable[str]) -> Markup:
    """Return an element for each text, with line breaks."""
    element = Markup(f"<{tag}>{{}}</{tag}>")
    return Markup().join(element.format(Markup("<br>").join(text.split("\n"))) for text in texts)


register_notebook_view(html)
