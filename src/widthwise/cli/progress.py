"""Progress of long work, as bars on a terminal or plain lines elsewhere; trackers also receive the records of runs."""

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
from widthwise.training.observer import Observer, tracked

SECONDS_BETWEEN_LINES = 5.0
WIDE = 100
"""Smallest width of a terminal, in characters, for long bars and names."""


class TrackerName(StrEnum):
    """Trackers of records; the keys of `training.observer.TRACKERS`."""

    TENSORBOARD = "tensorboard"
    WANDB = "wandb"


TrackOption = Annotated[
    list[TrackerName] | None,
    typer.Option("--track", help="Tracker that also gets the records of runs; repeat for several.", show_default=False),
]


@contextmanager
def training_progress(track: Sequence[TrackerName] | None = None) -> Iterator[Observer]:
    """Yield an observer that shows progress on standard error or in a notebook, and sends records to trackers.

    Raises UserError if the extra of a tracker is not installed.
    """
    with shown_progress(progress_console()) as shown, tracked(shown, [str(name) for name in track or ()]) as observer:
        yield observer


@contextmanager
def shown_progress(console: Console) -> Iterator[Observer]:
    """Yield an observer that shows preparations, runs and other work on a console, one at a time."""
    can_redraw = find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal
    if not can_redraw or console.is_dumb_terminal or is_silent():
        yield LineObserver(console)
        return
    with Bars(console) as bars:
        yield BarObserver(bars)


class _Pace:
    """The rate of a stage of work since its first report."""

    def __init__(self, stage: str = "", n_done: int = 0, unit: str = ""):
        """n_done: units that were done before; unit: in the plural, or `B` for bytes, which are shown in MB."""
        self.stage = stage
        self._is_bytes = unit == "B"
        self._unit = "MB" if unit == "B" else unit
        self._n_before = n_done
        self._began = time.monotonic()

    def texts(self, n_done: int, n_total: int | None, separator: str) -> tuple[str, str, str]:
        """Return the progress as `1.5 of 2.0 MB`, the rate as `1.5 MB/s` and the time as `0:01:30 left`.

        The progress is "" if nothing is counted, the rate is "" before the first unit is done, and the time is "" if
        the end is unknown or reached. separator: between the two numbers of the progress.
        """
        progress = rate = time_left = ""
        if n_done or n_total is not None:
            counts = [n for n in (n_done, n_total) if n is not None]
            progress = separator.join(f"{n / 1e6:.1f}" if self._is_bytes else f"{n:,}" for n in counts)
            progress += f" {self._unit}"
        seconds = time.monotonic() - self._began
        if n_done > self._n_before and seconds > 0:
            speed = (n_done - self._n_before) / seconds
            if self._is_bytes:
                number = f"{speed / 1e6:.1f}"
            else:
                number = f"{speed:,.0f}" if speed >= 10 else f"{speed:.2g}"
            rate = f"{number} {self._unit}/s"
            if n_total and n_done < n_total:
                time_left = f"{clock((n_total - n_done) / speed)} left"
        return progress, rate, time_left


class LineObserver(Observer):
    """Prints a line per record, and for longer work a line every few seconds and at its end."""

    def __init__(self, console: Console):
        self._console = console
        self._pace = _Pace()
        self._shown_at = 0.0
        self._is_open = False
        """True if lines of the stage were printed, but not the line at its end."""
        self._name = self._remaining = ""
        self._n_steps = 0

    def preparing(self, stage: str, n_bytes: int, n_bytes_total: int | None) -> None:
        self.working(stage, n_bytes, n_bytes_total, "B")

    def working(self, stage: str, n_done: int, n_total: int | None, unit: str) -> None:
        now = time.monotonic()
        if stage != self._pace.stage:
            self._pace = _Pace(stage, n_done, unit)
            self._shown_at = now
            self._is_open = False
            if not n_done and n_total is None:
                self.message(stage)
            return
        is_end = n_done == n_total and self._is_open
        if now - self._shown_at < SECONDS_BETWEEN_LINES and not is_end:
            return
        self._shown_at = now
        self._is_open = not is_end
        progress, rate, time_left = self._pace.texts(n_done, n_total, " of ")
        self.message("  ".join(filter(None, [f"{stage}: {progress}", rate, time_left])))

    def busy(self, what: str) -> None:
        self.message(f"{self._name}: {what}")

    def starting(self, name: str, step: int, n_steps: int) -> None:
        self._name = name
        self._n_steps = n_steps
        self._remaining = ""
        self._pace = _Pace()

    def record(self, record: dict[str, Any]) -> None:
        event = record["event"]
        if event == "train":
            self._trained(record)
            return
        if event in ("stopped", "norms"):  # the error that stops a run is printed; norms are too many numbers
            return
        if event == "growth":
            text = f"growth from {record['params_before']:,} to {record['params_after']:,} parameters, "
            text += f"validation loss {record['loss_before']:.6f} to {record['loss_after']:.6f}"
        elif event == "skipped":
            norm = record["grad_norm"]
            text = f"skipped, gradient norm {'not finite' if norm is None else f'{norm:.4g}'}"
        else:
            text = f"{event} {_loss(record)}"
        self.message(f"{self._name}: step {record['step']}/{self._n_steps}  {text}")

    def remaining(self, seconds: float) -> None:
        """Show the time left for all runs, and the date and time of their end."""
        end = datetime.now().astimezone() + timedelta(seconds=seconds)
        self._remaining = f"all runs: {clock(seconds)} left, until {end:%a %d %b %H:%M}"

    def message(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def for_parallel_run(self) -> "LineObserver":
        return LineObserver(self._console)

    def _trained(self, record: dict[str, Any]) -> None:
        remaining = (self._n_steps - record["step"]) * record["step_seconds"]
        line = f"{self._name}: step {record['step']}/{self._n_steps}  train {_loss(record)}  lr {record['lr']:.3g}"
        line += f"  {record['tokens_per_second']:,.0f} tokens/s  {clock(remaining)} left"
        self.message(f"{line}  {self._remaining}" if self._remaining else line)


class Bars(Progress):
    """A line for each task: name, bar, progress, rate, time left and loss."""

    footer = ""
    """Line below all tasks."""

    def __init__(self, console: Console):
        self._is_wide = console.width >= WIDE
        columns = (
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            BarColumn(bar_width=30 if self._is_wide else 8),
            _Rest(table_column=Column(no_wrap=True, overflow="ellipsis")),
        )
        super().__init__(*columns, console=console)

    def begin(self, name: str, n_total: int | None = None, is_shown: bool = True) -> TaskID:
        """Add a line for a task. A long name is shortened, so that the bar and the numbers fit."""
        short = shorten(name, 40 if self._is_wide else 26)
        return self.add_task(short, total=n_total, visible=is_shown, done="", rate="", loss="")

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.footer:
            yield Text(self.footer, no_wrap=True, overflow="ellipsis")


class _Rest(ProgressColumn):
    """The text after the bar: progress, rate, time left (or the elapsed time if that is unknown) and loss."""

    def render(self, task: Task) -> Text:
        fields = task.fields
        time = clock(task.elapsed or 0) if task.time_remaining is None else f"{clock(task.time_remaining)} left"
        return Text("  ".join(filter(None, [fields["done"], fields["rate"], time, fields["loss"]])))


class BarObserver(LineObserver):
    """Shows a bar for the current preparation, run or other work, and messages as lines above it."""

    def __init__(self, bars: Bars):
        super().__init__(bars.console)
        self._bars = bars
        self._is_run = False
        self._task = bars.begin("", is_shown=False)

    def working(self, stage: str, n_done: int, n_total: int | None, unit: str) -> None:
        if stage != self._pace.stage or self._is_run:
            self._begin(stage, n_total)
            self._pace = _Pace(stage, n_done, unit)
            self._is_run = False
        progress, rate, _ = self._pace.texts(n_done, n_total, "/")
        self._bars.update(self._task, total=n_total, completed=n_done, done=progress, rate=rate)

    def busy(self, what: str) -> None:
        self._show_run()
        self._bars.update(self._task, done=what)

    def starting(self, name: str, step: int, n_steps: int) -> None:
        super().starting(name, step, n_steps)
        self._show_run(is_new=True)
        self.step_done(step)  # the rate excludes the steps of an earlier process

    def step_done(self, step: int) -> None:
        self._show_run()
        self._bars.update(self._task, completed=step, done=f"{step:,}/{self._n_steps:,}")

    def remaining(self, seconds: float) -> None:
        super().remaining(seconds)
        self._bars.footer = self._remaining

    def for_parallel_run(self) -> "BarObserver":
        return BarObserver(self._bars)

    def _trained(self, record: dict[str, Any]) -> None:
        self._bars.update(self._task, rate=f"{record['tokens_per_second']:,.0f} tokens/s", loss=_loss(record))

    def _show_run(self, is_new: bool = False) -> None:
        """Begin a bar for the run if the current bar shows other work, or if `is_new`."""
        if is_new or not self._is_run:
            self._is_run = True
            self._begin(self._name, self._n_steps)

    def _begin(self, description: str, total: int | None) -> None:
        self._bars.remove_task(self._task)
        self._task = self._bars.begin(description, total)


def _loss(record: dict[str, Any]) -> str:
    """Return the loss of the next token, followed by the losses of the MTP heads."""
    text = f"loss {record['loss']:.4f}"
    if record.get("mtp_losses"):
        text += "  mtp" + "".join(f" {loss:.4f}" for loss in record["mtp_losses"])
    return text
