"""A table as text cells: the page, LaTeX and the terminal only lay it out."""

from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass


@dataclass(frozen=True)
class Table:
    """A plain table; the first column names the row."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    """Cells may be missing at the end of a row. Further lines of a cell are details of the first."""
    words: Collection[str] = ()
    """Titles of further columns that hold words, which begin where their title does."""
    _: KW_ONLY
    sortable: bool = True
    """Whether the rows are things of one kind, which a page may put into another order."""
    note: str = ""
    """Shown below the table, on a terminal only."""
    n_essential: int | None = None
    """Columns that a narrow terminal shows too; it leaves out as many of the further ones as it must. None: all."""
