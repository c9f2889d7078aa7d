"""The border to the terminal: whatever a verb prints goes through here, and no control character reaches a screen.
Where several processes do the same, only the first prints.

Names of files and runs, columns of tables and generated text come from anywhere; an escape code among them could
repaint the screen or rename its window.
"""

import json
import shlex
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from widthwise.reports.page.formats import printable
from widthwise.training.launch import is_silent

TABLE_WIDTH = 100
"""Columns that the widest tables need, if there is no terminal to fit them to."""


class _PrintableConsole(Console):
    """A console whose text is printed as it is: square brackets are no markup, numbers get no colour of their own."""

    def __init__(self, **options: Any):
        super().__init__(markup=False, highlight=False, emoji=False, quiet=is_silent(), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Without control characters, but for those with which Rich moves the cursor."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def table_console() -> Console:
    """Standard output, wide enough for every table."""
    return _PrintableConsole() if sys.stdout.isatty() else _PrintableConsole(width=TABLE_WIDTH)


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
