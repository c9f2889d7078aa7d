"""Output on the terminal. All verbs print through these functions, which remove control characters.

Under torchrun only rank 0 prints, except with `remark` and `say_text`.

Names of files and runs, columns of tables and generated text are untrusted: an escape code in them could clear the
screen or rename the window.
"""

import json
import shlex
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from widthwise.reports.formats import printable
from widthwise.reports.table import Table
from widthwise.training.launch import is_silent

USUAL_WIDTH = 80
"""Characters of a line of output that does not go to a terminal."""
TITLE_WIDTH = 8
"""Characters of a line of a column's title. Longer lines are broken between words unless the cells are as wide."""
WORD_WIDTH = 9
"""Smallest width of a column of text on a narrow terminal."""
N_LOOSE_COLUMNS = 8
"""Largest number of columns with two spaces between them; tables with more columns have one space."""
_STYLES = {"better": "bold green", "worse": "bold red", "baseline": "dim"}
"""Text of a cell in a text column -> its style."""


class _PrintableConsole(Console):
    """A console without control characters, in which square brackets are not markup and numbers have no colour."""

    def __init__(self, **options: Any):
        super().__init__(markup=False, highlight=False, emoji=False, quiet=is_silent(), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render without control characters, except those with which Rich moves the cursor."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def table_console() -> Console:
    """Return a console on standard output."""
    return _PrintableConsole(width=None if sys.stdout.isatty() else USUAL_WIDTH)


def progress_console() -> Console:
    """Return a console on standard error, for progress, so that standard output has only the result."""
    return _PrintableConsole(stderr=True)


def say(*lines: str) -> None:
    """Print lines on standard output, without wrapping."""
    if not is_silent():
        print(*map(printable, lines), sep="\n")


def say_next(*arguments: object) -> None:
    """Print the command that usually comes next, quoted for a shell. Arguments in capitals are placeholders."""
    say(f"next: {shlex.join(map(str, arguments))}")


def say_next_with_out(placeholder: str) -> None:
    """Print the current command without --plan-only and with an --out option, by default of value `placeholder`."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--plan-only"]
    if not any(argument.partition("=")[0] == "--out" for argument in arguments):
        arguments += ["--out", placeholder]
    say_next("widthwise", *arguments)


def say_text(text: str) -> None:
    """Print generated text: without control characters on a terminal, unchanged in a file or pipe."""
    print(printable(text) if sys.stdout.isatty() else text)


def remark(*lines: str) -> None:
    """Print lines on standard error."""
    print(*map(printable, lines), sep="\n", file=sys.stderr)


def say_json(data: Any) -> None:
    """Print a result as JSON, in which control characters are escaped. Records are printed as in their files."""
    if not is_silent():
        print(json.dumps(data, indent=2, default=lambda record: record.to_data()))


def say_sentences(*sentences: str) -> None:
    """Print sentences on standard output, wrapped between words."""
    if sentences:
        table_console().print("\n".join(sentences))


def say_tables(*tables: Table | None) -> None:
    """Print tables on standard output, separated by empty lines; None is skipped."""
    console = table_console()
    parts = [part for table in tables if table for part in fitted(table, console)]
    for i, part in enumerate(parts):
        if i > 0:
            console.print()
        console.print(laid_out(part))


def say_result(
    result: Any,
    as_json: bool,
    answer: Iterable[str] = (),
    tables: Iterable[Table | None] = (),
    files: Iterable[Path] = (),
    notes: Iterable[str] = (),
) -> None:
    """Print the result of a verb: answer, tables, notes and written files; or the result as JSON.

    answer, notes: sentences.
    """
    if as_json:
        say_json(result)
        return
    say_sentences(*answer)
    say_tables(*tables)
    say_sentences(*notes)
    for file in files:
        say(f"wrote {file}")


def fitted(table: Table, console: Console) -> Iterator[Table]:
    """Yield the table, without its last optional columns if it is wider than the console.

    If the essential columns do not fit either, yield several tables that each begin with the columns of names.
    """
    unbounded = Console(width=1000)  # to measure tables that are wider than the terminal

    def part(columns: list[int], **changes: str) -> Table:
        """Return the table with these columns only."""
        rows = [[row[i] for i in columns if i < len(row)] for row in table.rows]
        return replace(table, header=[table.header[i] for i in columns], rows=rows, **changes)

    def fits(columns: list[int]) -> bool:
        """Return True if the columns fit into a line, where a first cell takes at most half a line."""
        half = console.width // 2
        drawn = part(columns, caption="", note="")
        rows = [[*(name[:half] for name in row[:1]), *row[1:]] for row in drawn.rows]
        return unbounded.measure(laid_out(replace(drawn, rows=rows))).maximum <= console.width

    n_columns = len(table.header)
    while n_columns > (table.n_essential or n_columns) and not fits([*range(n_columns)]):
        n_columns -= 1
    # The columns of names end before the first column of numbers, or before the last column.
    n_names = next((i for i in range(1, n_columns) if table.header[i] not in table.text_columns), n_columns - 1)
    names = [*range(n_names)]
    titles = table.header[:n_columns]
    lines = ["; ".join(text for title, text in notes.items() if title in titles) for notes in table.column_notes]
    note = "\n".join(filter(None, [table.note, *lines]))
    first = n_names
    while first < n_columns:
        last = n_columns
        while last > first + 1 and not fits([*names, *range(first, last)]):
            last -= 1
        caption = table.caption if first == n_names else ""
        yield part([*names, *range(first, last)], caption=caption, note=note if last == n_columns else "")
        first = last


def laid_out(table: Table) -> RichTable:
    """Return the table for Rich: text flush left, numbers flush right and unbroken, an empty row as a blank line.

    All lines of a cell after the first are dim.
    """
    n_spaces = 1 if len(table.header) <= N_LOOSE_COLUMNS else 0  # in addition to the space of the box
    drawn = RichTable(
        title=Text(table.caption),
        caption=Text(table.note) if table.note else None,
        box=SIMPLE_HEAD,
        padding=(0, n_spaces, 0, 0),
        pad_edge=False,
        show_edge=False,
        min_width=max(_width(table.caption), _width(table.note)),  # Rich breaks texts wider than the table
    )
    for i, title in enumerate(table.header):
        width = _width("\n".join(row[i] for row in table.rows if i < len(row)))  # of the cells
        longest = max(TITLE_WIDTH, width)
        lines = ["\n".join(wrap(line, longest, break_long_words=False)) for line in title.split("\n")]
        heading = "\n".join(lines)
        if i == 0 or title in table.text_columns:
            drawn.add_column(Text(heading), overflow="fold", min_width=min(WORD_WIDTH, width))
        else:
            fits = _width(heading) <= longest  # no word is longer than the column
            drawn.add_column(Text(heading), overflow="fold", min_width=width, no_wrap=fits, justify="right")
    for row in table.rows:
        cells = []
        for text, title in zip(row, table.header):
            value, newline, detail = text.partition("\n")
            style = _STYLES.get(value, "") if title in table.text_columns else ""
            cells.append(Text(value, style).append(newline + detail, style="dim"))
        drawn.add_row(*cells)
    return drawn


def _width(text: str) -> int:
    """Return the width of the longest line, in cells of the terminal."""
    return max(map(cell_len, text.splitlines()), default=0)
