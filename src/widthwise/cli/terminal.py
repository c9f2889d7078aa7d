"""The border to the terminal: whatever a verb prints goes through here, and no control character reaches a screen.
Where several processes do the same, only the first prints. All tables look alike; their cells each verb says as text.

Names of files and runs, columns of tables and generated text come from anywhere; an escape code among them could
repaint the screen or rename its window.
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
"""Columns of what is printed where there is no terminal to fit it to."""
TITLE_WIDTH = 8
"""A title longer than this is broken between words, if its column does not need the room anyway."""
WORD_WIDTH = 9
"""Columns that a narrow terminal leaves of names or words."""
N_LOOSE_COLUMNS = 8
"""A table with more columns than this has one space between them instead of two."""
_STYLES = {"better": "bold green", "worse": "bold red", "baseline": "dim"}
"""Word -> the style of a cell that holds it, in columns of words."""


class _PrintableConsole(Console):
    """A console whose text is printed as it is: square brackets are no markup, numbers get no colour."""

    def __init__(self, **options: Any):
        super().__init__(markup=False, highlight=False, emoji=False, quiet=is_silent(), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Without control characters, but for those with which Rich moves the cursor."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def table_console() -> Console:
    """Standard output."""
    return _PrintableConsole() if sys.stdout.isatty() else _PrintableConsole(width=USUAL_WIDTH)


def progress_console() -> Console:
    """Standard error, where progress is shown, so that standard output holds the answer alone."""
    return _PrintableConsole(stderr=True)


def say(*lines: str) -> None:
    """Lines on standard output, as long as they are."""
    if not is_silent():
        print(*map(printable, lines), sep="\n")


def say_next(*words: object) -> None:
    """The command that usually comes next, for a shell; a word in capitals is to be filled in."""
    say(f"next: {shlex.join(map(str, words))}")


def say_next_with_out(place: str) -> None:
    """The command just given as one that writes; `place` stands for where to, unless it was said."""
    words = [word for word in sys.argv[1:] if word != "--plan-only"]
    is_said = any(word.partition("=")[0] == "--out" for word in words)
    say_next("widthwise", *words, *(() if is_said else ("--out", place)))


def say_text(text: str) -> None:
    """Generated text on standard output: without control characters on a terminal, as it is in a file or pipe."""
    print(printable(text) if sys.stdout.isatty() else text)


def remark(*lines: str) -> None:
    """Lines on standard error."""
    print(*map(printable, lines), sep="\n", file=sys.stderr)


def say_json(data: Any) -> None:
    """The answer to --json, a record as its file has it. JSON writes control characters as escapes."""
    if not is_silent():
        print(json.dumps(data, indent=2, default=lambda record: record.to_data()))


def say_sentences(*sentences: str) -> None:
    """Sentences on standard output, broken between words."""
    if sentences:
        table_console().print("\n".join(sentences))


def say_tables(*tables: Table | None) -> None:
    """Tables on standard output, with an empty line between two; None is none."""
    console = table_console()
    for i, part in enumerate(part for table in tables if table for part in fitted(table, console)):
        if i:
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
    """The end of a verb: the answer, the tables, notes on them and the files that were written; or the result as JSON.

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
    """The table without the last columns that are not essential, as far as a line has no room for them; where it has
    none for the others, in parts that each begin with the columns that name a row."""
    unbounded, half = Console(width=1000), console.width // 2

    def part(columns: list[int], **changes: str) -> Table:
        rows = [[row[i] for i in columns if i < len(row)] for row in table.rows]
        return replace(table, header=[table.header[i] for i in columns], rows=rows, **changes)

    def fits(columns: list[int]) -> bool:
        """Return True if the columns fit with names of at most half a line; longer ones are broken."""
        drawn = part(columns, caption="", note="")
        drawn = replace(drawn, rows=[[*(name[:half] for name in row[:1]), *row[1:]] for row in drawn.rows])
        return unbounded.measure(laid_out(drawn)).maximum <= console.width

    n_columns = len(table.header)
    while n_columns > (table.n_essential or n_columns) and not fits([*range(n_columns)]):
        n_columns -= 1
    n_names = next((i for i in range(1, n_columns) if table.header[i] not in table.words), n_columns - 1)
    first, names, kept = n_names, [*range(n_names)], table.header[:n_columns]
    lines = ["; ".join(text for title, text in line.items() if title in kept) for line in table.column_notes]
    note = "\n".join(filter(None, [table.note, *lines]))
    while first < n_columns:
        last = n_columns
        while last > first + 1 and not fits([*names, *range(first, last)]):
            last -= 1
        is_first, is_last = first == n_names, last == n_columns
        yield part([*names, *range(first, last)], caption=table.caption * is_first, note=note * is_last)
        first = last


def laid_out(table: Table) -> RichTable:
    """The table for Rich: words to the left, numbers to the right and in one piece, an empty row as an empty line."""
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
        longest = max(TITLE_WIDTH, width)
        lines = ["\n".join(wrap(line, longest, break_long_words=False)) for line in title.split("\n")]
        heading = "\n".join(lines)
        if i == 0 or title in table.words:
            drawn.add_column(Text(heading), overflow="fold", min_width=min(WORD_WIDTH, width))
        else:
            is_whole = _width(heading) <= longest
            drawn.add_column(Text(heading), overflow="fold", min_width=width, no_wrap=is_whole, justify="right")
    for row in table.rows:
        drawn.add_row(*(_cell(text, title in table.words) for text, title in zip(row, table.header)))
    return drawn


def _width(text: str) -> int:
    """In columns of the terminal, of the longest line."""
    return max(map(cell_len, text.splitlines()), default=0)


def _cell(text: str, is_words: bool) -> Text:
    value, newline, detail = text.partition("\n")
    return Text(value, _STYLES.get(value, "") if is_words else "").append(newline + detail, style="dim")
