"""How every table looks on a terminal. What its columns and cells are, each verb says as a `Table` of text cells."""

from dataclasses import replace
from textwrap import wrap
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from widthwise.cli.terminal import table_console
from widthwise.reports.page.table import Table

if TYPE_CHECKING:
    from rich.table import Table as RichTable

TITLE_WIDTH = 8
"""A title longer than this is broken between words, if its column does not need the room anyway."""
WORD_WIDTH = 9
"""What a narrow terminal leaves of a column of names or words."""
N_LOOSE_COLUMNS = 8
"""A table with more columns than this has one space between them instead of two."""
_STYLES = {"better": "bold green", "worse": "bold red", "baseline": "dim"}
"""Word -> the style of a cell that holds it, in columns of words."""


def say_tables(*tables: Table) -> None:
    """Tables on standard output, with an empty line between two."""
    console = table_console()
    for i, table in enumerate(tables):
        if i:
            console.print()
        console.print(laid_out(_fitted(table, console)))


def _fitted(table: Table, console: Console) -> Table:
    """Without the last columns that are not essential, where a line would be broken otherwise."""
    n_columns = len(table.header)
    unbounded = Console(width=1000)
    while n_columns > (table.n_essential or n_columns) and unbounded.measure(laid_out(table)).maximum > console.width:
        n_columns -= 1
        rows = [row[:n_columns] for row in table.rows]
        table = replace(table, header=table.header[:n_columns], rows=rows)
    return table


def laid_out(table: Table) -> "RichTable":
    """The table for Rich: words to the left, numbers to the right and in one piece, an empty row as an empty line."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable

    drawn = RichTable(
        title=Text(table.caption),
        caption=Text(table.note) if table.note else None,
        box=SIMPLE_HEAD,
        padding=(0, int(len(table.header) <= N_LOOSE_COLUMNS), 0, 0),
        pad_edge=False,
        show_edge=False,
        min_width=max(_width(table.caption), _width(table.note)),  # Rich breaks what is wider than the table.
    )
    for i, title in enumerate(table.header):
        width = _width("\n".join(row[i] for row in table.rows if i < len(row)))
        heading = _broken(title, max(TITLE_WIDTH, width))
        if i == 0 or title in table.words:
            drawn.add_column(Text(heading), overflow="fold", min_width=min(WORD_WIDTH, width))
        else:
            is_whole = _width(heading) <= max(TITLE_WIDTH, width)
            drawn.add_column(Text(heading), overflow="fold", min_width=width, no_wrap=is_whole, justify="right")
    for row in table.rows:
        drawn.add_row(*(_cell(text, title in table.words) for text, title in zip(row, table.header)))
    return drawn


def _width(text: str) -> int:
    """In columns of the terminal, of the longest line."""
    return max(map(cell_len, text.splitlines()), default=0)


def _broken(title: str, width: int) -> str:
    """Between words, where it is too long, and where its own lines end."""
    lines = title.split("\n")
    return "\n".join("\n".join(wrap(line, width, break_long_words=False, break_on_hyphens=False)) for line in lines)


def _cell(text: str, is_words: bool) -> Text:
    value, newline, detail = text.partition("\n")
    return Text(value, _STYLES.get(value, "") if is_words else "").append(newline + detail, style="dim")
