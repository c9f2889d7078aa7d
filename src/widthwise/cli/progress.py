"""Progress of whatever takes long: a bar on a terminal, plain lines elsewhere. Records of runs go to trackers too."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from enum import StrEnum
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from widthwise.cli.terminal import progress_console
from widthwise.reports.formats import clock, shorten
from widthwise.training.launch import is_silent
from widthwise.training.observer import Observer

SECONDS_BETWEEN_LINES = 5.0
WIDE = 100
"""Columns from which on bars and names have more room."""


class TrackerName(StrEnum):
    """Trackers that take records; the keys of `training.tracked.TRACKERS`."""

    TENSORBOARD = "tensorboard"
    WANDB = "wandb"


TrackOption = Annotated[
    list[TrackerName] | None,
    typer.Option("--track", help="Also send the records of runs there; repeat for several.", show_default=False),
]


@contextmanager
def training_progress(track: Sequence[TrackerName] | None = None) -> Iterator[Observer]:
    """An observer of training that shows progress on standard error or in a notebook, and sends records to trackers.

    Raises UserError where the extra of a tracker is not installed.
    """
    from widthwise.training.tracked import tracked

    with shown_progress(progress_console()) as shown, tracked(shown, [str(name) for name in track or ()]) as observer:
        yield observer


@contextmanager
def shown_progress(console: Console) -> Iterator[Observer]:
    """An observer that shows preparations, runs and other work, one after the other, on a console."""
    can_redraw = find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal
    if not can_redraw or console.is_dumb_terminal or is_silent():
        yield LineObserver(console)
        return
    with Bars(console) as bars:
        yield BarObserver(bars)


class _Pace:
    """The rate of a stage of some work since its first report."""

    def __init__(self, stage: str = "", n_done: int = 0, unit: str = ""):
        """unit: what is counted, in the plural; `B` for bytes, which are shown in MB."""
        self.stage, self._is_bytes, self._name = stage, unit == "B", "MB" if unit == "B" else unit
        self._n_before, self._began = n_done, time.monotonic()

    def said(self, n_done: int, n_total: int | None, of: str) -> tuple[str, str, str]:
        """Return the progress as `1.5 of 2.0 MB`, the rate as `1.5 MB/s` and the time as `0:01:30 left`.

        Each is "" where nothing is counted, nothing was done yet, or the end is reached or not known. of: word between
        the numbers.
        """
        done, rate, left = "", "", ""
        seconds, n_new = time.monotonic() - self._began, n_done - self._n_before
        if n_done or n_total is not None:
            done = of.join(f"{n / 1e6:.1f}" if self._is_bytes else f"{n:,}" for n in (n_done, n_total) if n is not None)
            done += f" {self._name}"
        if n_new > 0 and seconds > 0:
            speed = n_new / seconds
            shown = f"{speed / 1e6:.1f}" if self._is_bytes else f"{speed:,.0f}" if speed >= 10 else f"{speed:.2g}"
            rate = f"{shown} {self._name}/s"
            left = f"{clock((n_total - n_done) / speed)} left" if n_total and n_done < n_total else ""
        return done, rate, left


class LineObserver(Observer):
    """One line per record. Other work has one every few seconds and at its end, if it takes longer than that."""

    def __init__(self, console: Console):
        self._console = console
        self._pace, self._shown_at = _Pace(), 0.0
        self._is_open = False
        """True while the stage has a line, and none of its end."""
        self._name, self._n_steps, self._remaining = "", 0, ""

    def preparing(self, stage: str, n_bytes: int, n_bytes_total: int | None) -> None:
        self.working(stage, n_bytes, n_bytes_total, "B")

    def working(self, stage: str, n_done: int, n_total: int | None, unit: str) -> None:
        now = time.monotonic()
        if stage != self._pace.stage:
            self._pace, self._shown_at, self._is_open = _Pace(stage, n_done, unit), now, False
            if not n_done and n_total is None:
                self.message(stage)
            return
        is_end = n_done == n_total and self._is_open
        if now - self._shown_at < SECONDS_BETWEEN_LINES and not is_end:
            return
        self._shown_at, self._is_open = now, not is_end
        done, *others = self._pace.said(n_done, n_total, " of ")
        self.message("  ".join(filter(None, [f"{stage}: {done}", *others])))

    def busy(self, what: str) -> None:
        self.message(f"{self._name}: {what}")

    def starting(self, name: str, step: int, n_steps: int) -> None:
        self._name, self._n_steps, self._remaining = name, n_steps, ""
        self._pace = _Pace()

    def record(self, record: dict[str, Any]) -> None:
        event = record["event"]
        if event == "train":
            self._trained(record)
        elif event not in ("stopped", "norms"):  # the first is said by the error that ends the run, the others are many
            self.message(f"{self._name}: step {record['step']}/{self._n_steps}  {_event(record)}")

    def remaining(self, seconds: float) -> None:
        """Show the time left for all runs, and the hour at which they end."""
        end = datetime.now().astimezone() + timedelta(seconds=seconds)
        self._remaining = f"all runs: {clock(seconds)} left, until {end:%a %d %b %H:%M}"

    def message(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def beside(self) -> "LineObserver":
        return LineObserver(self._console)

    def _trained(self, record: dict[str, Any]) -> None:
        remaining = (self._n_steps - record["step"]) * record["step_seconds"]
        line = f"{self._name}: step {record['step']}/{self._n_steps}  train {_loss(record)}  lr {record['lr']:.3g}"
        line += f"  {record['tokens_per_second']:,.0f} tokens/s  {clock(remaining)} left"
        self.message(f"{line}  {self._remaining}" if self._remaining else line)


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
    """Return the text behind the bar: the time left, or the time passed until that is known."""

    def render(self, task: Task) -> Text:
        fields, left = task.fields, task.time_remaining
        time = clock(task.elapsed or 0) if left is None else f"{clock(left)} left"
        return Text("  ".join(filter(None, [fields["done"], fields["rate"], time, fields["loss"]])))


class BarObserver(LineObserver):
    """One bar for each preparation, each run and each other work; lines above for what else there is to say."""

    def __init__(self, bars: Bars):
        super().__init__(bars.console)
        self._bars, self._is_run = bars, False
        self._task = bars.begin("", is_shown=False)

    def working(self, stage: str, n_done: int, n_total: int | None, unit: str) -> None:
        if stage != self._pace.stage or self._is_run:
            self._begin(stage, n_total)
            self._pace, self._is_run = _Pace(stage, n_done, unit), False
        done, rate, _ = self._pace.said(n_done, n_total, "/")
        self._bars.update(self._task, total=n_total, completed=n_done, done=done, rate=rate)

    def busy(self, what: str) -> None:
        self._go_on()
        self._bars.update(self._task, done=what)

    def starting(self, name: str, step: int, n_steps: int) -> None:
        super().starting(name, step, n_steps)
        self._go_on(is_new=True)
        self.step_done(step)  # from here on, so that the steps of an earlier process do not enter the rate

    def step_done(self, step: int) -> None:
        self._go_on()
        self._bars.update(self._task, completed=step, done=f"{step:,}/{self._n_steps:,}")

    def remaining(self, seconds: float) -> None:
        super().remaining(seconds)
        self._bars.footer = self._remaining

    def beside(self) -> "BarObserver":
        return BarObserver(self._bars)

    def _trained(self, record: dict[str, Any]) -> None:
        self._bars.update(self._task, rate=f"{record['tokens_per_second']:,.0f} tokens/s", loss=_loss(record))

    def _go_on(self, is_new: bool = False) -> None:
        """Begin a bar for the run, if other work has the present one."""
        if is_new or not self._is_run:
            self._is_run = True
            self._begin(self._name, self._n_steps)

    def _begin(self, description: str, total: int | None) -> None:
        self._bars.remove_task(self._task)
        self._task = self._bars.begin(description, total)


def _loss(record: dict[str, Any]) -> str:
    """The loss of the next token, followed by the losses of the heads of multi-token prediction."""
    later = "".join(f" {loss:.4f}" for loss in record.get("mtp_losses", ()))
    return f"loss {record['loss']:.4f}" + (f"  mtp{later}" if later else "")


def _event(record: dict[str, Any]) -> str:
    """An event other than a step, as text."""
    if record["event"] == "growth":
        params = f"{record['params_before']:,} to {record['params_after']:,} parameters"
        return f"growth from {params}, validation loss {record['loss_before']:.6f} to {record['loss_after']:.6f}"
    if record["event"] == "skipped":
        norm = record["grad_norm"]
        return f"skipped, gradient norm {'not finite' if norm is None else f'{norm:.4g}'}"
    return f"{record['event']} {_loss(record)}"
