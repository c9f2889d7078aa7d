"""CSV that no spreadsheet runs as formulas."""

import csv
import io
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from widthwise.reports.page.formats import clean


def csv_rows(rows: Iterable[Mapping[str, object]], header: Sequence[str]) -> str:
    """Rows below their header; texts in them are safe already, see `csv_cell`."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=header, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def csv_cell(text: str) -> str:
    """Text that no spreadsheet takes for a formula: such a cell gets a leading apostrophe, unless it is a number."""
    text = clean(text)
    if not text or unicodedata.normalize("NFKC", text[0]) not in ("=", "+", "-", "@"):
        return text
    try:
        float(text)
    except ValueError:
        return "'" + text
    return text
