"""The bars of all work in progress, one below the other, in the columns that the terminal has."""

from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from widthwise.reports.page.formats import clock, shorten

WIDE = 100
"""Columns from which on bars and names have more room."""


class Bars(Progress):
    """A line for each work: its name, a bar, then what is done, the rate, the time left and the loss.

    `footer` is a line below all of them.
    """

    footer = ""

    def __init__(self, console: Console):
        self._is_wide = console.width >= WIDE
        columns = (
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            BarColumn(bar_width=30 if self._is_wide else 8),
            _Rest(table_column=Column(no_wrap=True, overflow="ellipsis")),
        )
        super().__init__(*columns, console=console)

    def begin(self, name: str, n_total: int | None = None, is_shown: bool = True) -> TaskID:
        """A further line. name: is shortened, to leave room for the rest."""
        short = shorten(name, 40 if self._is_wide else 26)
        return self.add_task(short, total=n_total, visible=is_shown, done="", rate="", loss="")

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.footer:
            yield Text(self.footer, no_wrap=True, overflow="ellipsis")


class _Rest(ProgressColumn):
    """What stands behind the bar; until the time left is known, how long it has gone on."""

    def render(self, task: Task) -> Text:
        fields = task.fields
        left = task.time_remaining
        time = clock(task.elapsed or 0) if left is None else f"{clock(left)} left"
        return Text("  ".join(filter(None, [fields["done"], fields["rate"], time, fields["loss"]])))
