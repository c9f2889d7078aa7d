"""Tables of text cells, for pages, LaTeX, terminals and CSV files. No cell can run code."""

import csv
import io
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from markupsafe import Markup

from widthwise.reports.formats import MINUS, MISSING, TIMES, clean

if TYPE_CHECKING:
    from widthwise.records.estimate import Estimate


@dataclass(frozen=True)
class Table:
    """A table whose first column names the rows."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    """Rows may be shorter than the header. Further lines of a cell are details of its first line."""
    text_columns: Collection[str] = ()
    """Titles of the columns of text, which are left-aligned. The first column always is."""
    _: KW_ONLY
    sortable: bool = True
    """True if readers can sort the rows on a page."""
    note: str = ""
    """Text below the table, on a terminal only."""
    column_notes: Sequence[Mapping[str, str]] = ()
    """Further lines below `note`: title of a column -> note. Notes on columns that a terminal hides are omitted."""
    n_essential: int | None = None
    """Number of first columns that a narrow terminal must show; None: all."""
    swatches: Sequence[Markup] = ()
    """Samples of lines next to the names of the rows, on a page only."""
    notes: Sequence[str] = ()
    """Definitions of the columns, folded below the table of a page."""
    is_folded: bool = False
    """A page shows only the caption until a reader opens it."""

    @property
    def folded(self) -> "Table":
        """A copy that a page shows folded."""
        return replace(self, is_folded=True)

    def latex(self, caption: str) -> str:
        r"""Return a `table` environment for a paper; needs \usepackage{booktabs} and T1 font encoding.

        caption: replaces the caption of the table.
        """
        layout = "".join("l" if title in self.text_columns else "r" for title in self.header[1:])
        body = "".join(map(_latex_row, self.rows))
        return (
            "% needs \\usepackage[T1]{fontenc} and \\usepackage{booktabs}\n"
            "\\begin{table}\n"
            "  \\centering\\small\n"
            f"  \\caption{{{latex_escape(caption)}}}\n"
            f"  \\begin{{tabular}}{{l{layout}}}\n"
            f"    \\toprule\n{_latex_row(self.header)}"
            f"    \\midrule\n{body}"
            "    \\bottomrule\n"
            "  \\end{tabular}\n"
            "\\end{table}\n"
        )


def _latex_row(row: Sequence[str]) -> str:
    """Return a row as LaTeX lines: the first lines of all cells, then their second lines, and so on."""
    lines = zip_longest(*(cell.split("\n") for cell in row), fillvalue="")
    return "".join(f"    {' & '.join(map(latex_escape, cells))} \\\\\n" for cells in lines)


_LATEX_NAMES = {"\\": "backslash", "~": "asciitilde", "^": "asciicircum", "`": "asciigrave", '"': "quotedbl"}
_LATEX_NAMES |= {"<": "less", ">": "greater", "|": "bar"}
_LATEX = {
    **{letter: rf"\text{name}{{}}" for letter, name in _LATEX_NAMES.items()},
    **{letter: rf"\{letter}" for letter in "{}%_&#$"},
    **{letter: f"{{{letter}}}" for letter in "[]*"},  # after \\ a bracket or a star would be read as its argument
    **{MINUS: "$-$", MISSING: "--", TIMES: r"$\times$", "…": r"\ldots{}", "†": r"\dag{}"},
    **{"↑": r"$\uparrow$", "↓": r"$\downarrow$"},
    "\0": "{}",
}
_LIGATURE = re.compile(r"([-',])(?=\1)")
"""Characters that LaTeX would join with an equal next one, such as -- to a dash."""


def latex_escape(text: str) -> str:
    """Return text with all special characters of LaTeX escaped, so that it is printed unchanged."""
    return "".join(_LATEX.get(letter, letter) for letter in _LIGATURE.sub("\\1\0", clean(text)))


def by_row(caption: str, corner: str, cells: Mapping[str, Mapping[str, str]]) -> Table:
    """Return a table. cells: row -> column -> text. Columns are in the order of their first appearance."""
    titles = list(dict.fromkeys(title for row in cells.values() for title in row))
    rows = [[clean(name), *(row.get(title, MISSING) for title in titles)] for name, row in cells.items()]
    return Table(caption, [corner, *map(clean, titles)], rows)


def by_column(caption: str, columns: Mapping[str, Mapping[str, str]], corner: str = "Item") -> Table:
    """Return a table whose rows are of different kinds and cannot be sorted. columns: column -> row -> text."""
    titles = dict.fromkeys(title for column in columns.values() for title in column)
    cells = {title: {name: column.get(title, MISSING) for name, column in columns.items()} for title in titles}
    return replace(by_row(caption, corner, cells), sortable=False)


def csv_rows(header: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """Return header and rows as CSV, with `csv_cell` for text. None is an empty cell."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    for row in (header, *rows):
        writer.writerow([csv_cell(cell) if isinstance(cell, str) else cell for cell in row])
    return buffer.getvalue()


def csv_estimate(name: str, estimate: "Estimate | None") -> dict[str, float | None]:
    """Return the columns of an estimate: its mean and the ends of its interval. All are None without an estimate."""
    return {f"{name}_{part}": getattr(estimate, part, None) for part in ("mean", "low", "high")}


def csv_cell(text: str) -> str:
    """Return text that no spreadsheet reads as a formula: a leading apostrophe is added unless it is a number."""
    text = clean(text)
    if not text or unicodedata.normalize("NFKC", text[0]) not in ("=", "+", "-", "@"):
        return text
    try:
        float(text)
    except ValueError:
        return "'" + text
    return text
