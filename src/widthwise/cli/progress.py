"""Progress of whatever takes long: a bar on a terminal, plain lines elsewhere. Records of runs go to trackers too."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from enum import StrEnum
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
def training_progress(track: Sequence[TrackerName] | None) -> Iterator[Observer]:
    """An observer of training that shows progress on standard error, and sends the records to trackers.

    Raises UserError where the extra of a tracker is not installed.
    """
    from widthwise.training.tracked import tracked

    with shown_progress(progress_console()) as shown, tracked(shown, [str(name) for name in track or ()]) as observer:
        yield observer


@contextmanager
def shown_progress(console: Console) -> Iterator[Observer]:
    """An observer that shows preparations, runs and other work, one after the other, on a console."""
    if not console.is_terminal or console.is_dumb_terminal or is_silent():
        yield LineObserver(console)
        return
    with Bars(console) as bars:
        yield BarObserver(bars)


class _Pace:
    """The rate of a stage of some work since its first report."""

    def __init__(self, stage: str = "", n_done: int = 0, unit: str = ""):
        """unit: what is counted, in the plural; `B` for bytes, which are shown in MB."""
        self.stage, self._unit = stage, unit
        self._n_before, self._began = n_done, time.monotonic()

    def done(self, n_done: int, n_total: int | None, of: str) -> str:
        """Return the progress as `1.5 of 2.0 MB`; "" where nothing is counted. of: word between the numbers."""
        if not n_done and n_total is None:
            return ""
        total = "" if n_total is None else f"{of}{self._number(n_total)}"
        return f"{self._number(n_done)}{total} {self._name}"

    def rate(self, n_done: int) -> str:
        """As `1.5 MB/s`; "" while nothing was done."""
        rate = self._per_second(n_done)
        if rate is None:
            return ""
        shown = f"{rate / 1e6:.1f}" if self._unit == "B" else f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
        return f"{shown} {self._name}/s"

    def left(self, n_done: int, n_total: int | None) -> str:
        """As `0:01:30 left`; "" at the end, and where it is not known."""
        rate = self._per_second(n_done)
        return f"{clock((n_total - n_done) / rate)} left" if rate and n_total and n_done < n_total else ""

    @property
    def _name(self) -> str:
        return "MB" if self._unit == "B" else self._unit

    def _number(self, n: int) -> str:
        return f"{n / 1e6:.1f}" if self._unit == "B" else f"{n:,}"

    def _per_second(self, n_done: int) -> float | None:
        seconds = time.monotonic() - self._began
        return (n_done - self._n_before) / seconds if n_done > self._n_before and seconds > 0 else None


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
        fields = task.fields
        left = task.time_remaining
        time = clock(task.elapsed or 0) if left is None else f"{clock(left)} left"
        return Text("  ".join(filter(None, [fields["done"], fields["rate"], time, fields["loss"]])))


class _Shown(Observer):
    """The common part of both ways of showing progress."""

    def preparing(self, stage: str, n_bytes: int, n_bytes_total: int | None) -> None:
        self.working(stage, n_bytes, n_bytes_total, "B")


class BarObserver(_Shown):
    """One bar for each preparation, each run and each other work."""

    def __init__(self, bars: Bars):
        self._bars = bars
        self._pace, self._is_run = _Pace(), False
        self._run = ("", 0, 0)
        """Name of the run, the step after which it goes on, its number of steps."""
        self._task = bars.begin("", is_shown=False)

    def working(self, stage: str, n_done: int, n_total: int | None, unit: str) -> None:
        if stage != self._pace.stage or self._is_run:
            self._begin(stage, n_total)
            self._pace, self._is_run = _Pace(stage, n_done, unit), False
        done, rate = self._pace.done(n_done, n_total, "/"), self._pace.rate(n_done)
        self._bars.update(self._task, total=n_total, completed=n_done, done=done, rate=rate)

    def busy(self, what: str) -> None:
        if not self._is_run:
            self.starting(*self._run)
        self._bars.update(self._task, done=what)

    def starting(self, name: str, step: int, n_steps: int) -> None:
        self._run, self._is_run = (name, step, n_steps), True
        self._begin(name, n_steps)
        # Counted from here, so that the steps of an earlier process do not enter the rate.
        self._show_step(step)

    def step_done(self, step: int) -> None:
        if not self._is_run:
            self.starting(self._run[0], step, self._run[2])
        self._show_step(step)

    def record(self, record: dict[str, Any]) -> None:
        name = self._run[0]
        if record["event"] == "train":
            self._bars.update(self._task, rate=f"{record['tokens_per_second']:,.0f} tokens/s", loss=_loss(record))
        elif record["event"] == "validation":
            self.message(f"{name}: step {record['step']}  validation {_loss(record)}")
        elif record["event"] in _SENTENCES:
            self.message(f"{name}: step {record['step']}  {_SENTENCES[record['event']](record)}")

    def remaining(self, seconds: float) -> None:
        self._bars.footer = _end_of_all(seconds)

    def message(self, text: str) -> None:
        self._bars.console.print(text, highlight=False, markup=False)

    def beside(self) -> "BarObserver":
        return BarObserver(self._bars)

    def _show_step(self, step: int) -> None:
        self._bars.update(self._task, completed=step, done=f"{step:,}/{self._run[2]:,}")

    def _begin(self, description: str, total: int | None) -> None:
        self._bars.remove_task(self._task)
        self._task = self._bars.begin(description, total)


class LineObserver(_Shown):
    """One line per record. Other work has one every few seconds and at its end, if it takes longer than that."""

    def __init__(self, console: Console):
        self._console = console
        self._pace, self._shown_at = _Pace(), 0.0
        self._is_open = False
        """Whether the stage has a line, and none of its end."""
        self._name, self._n_steps, self._remaining = "", 0, ""

    def working(self, stage: str, n_done: int, n_total: int | None, unit: str) -> None:
        now = time.monotonic()
        if stage != self._pace.stage:
            self._pace, self._shown_at, self._is_open = _Pace(stage, n_done, unit), now, False
            if not self._pace.done(n_done, n_total, " of "):
                self.message(stage)
            return
        is_end = n_done == n_total and self._is_open
        if now - self._shown_at < SECONDS_BETWEEN_LINES and not is_end:
            return
        self._shown_at, self._is_open = now, not is_end
        done = self._pace.done(n_done, n_total, " of ")
        words = [f"{stage}: {done}", self._pace.rate(n_done), self._pace.left(n_done, n_total)]
        self.message("  ".join(filter(None, words)))

    def busy(self, what: str) -> None:
        self.message(f"{self._name}: {what}")

    def starting(self, name: str, step: int, n_steps: int) -> None:
        self._name, self._n_steps, self._remaining = name, n_steps, ""
        self._pace = _Pace()

    def record(self, record: dict[str, Any]) -> None:
        if record["event"] in ("stopped", "norms"):
            return  # the first is said by the error that ends the run, the others are too many numbers
        if record["event"] in _SENTENCES:
            self.message(f"{self._name}: step {record['step']}/{self._n_steps}  {_SENTENCES[record['event']](record)}")
            return
        line = f"{self._name}: step {record['step']}/{self._n_steps}  {record['event']} {_loss(record)}"
        if record["event"] == "train":
            remaining = (self._n_steps - record["step"]) * record["step_seconds"]
            line += f"  lr {record['lr']:.3g}  {record['tokens_per_second']:,.0f} tokens/s  {clock(remaining)} left"
            line += f"  {self._remaining}" if self._remaining else ""
        self.message(line)

    def remaining(self, seconds: float) -> None:
        self._remaining = _end_of_all(seconds)

    def message(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def beside(self) -> "LineObserver":
        return LineObserver(self._console)


def _loss(record: dict[str, Any]) -> str:
    """The loss of the next token, followed by those of the heads of multi-token prediction."""
    later = "".join(f" {loss:.4f}" for loss in record.get("mtp_losses", ()))
    return f"loss {record['loss']:.4f}" + (f"  mtp{later}" if later else "")


def _growth(record: dict[str, Any]) -> str:
    params = f"{record['params_before']:,} to {record['params_after']:,} parameters"
    return f"growth from {params}, validation loss {record['loss_before']:.6f} to {record['loss_after']:.6f}"


def _skipped(record: dict[str, Any]) -> str:
    norm = record["grad_norm"]
    return f"skipped, gradient norm {'not finite' if norm is None else f'{norm:.4g}'}"


_SENTENCES = {"growth": _growth, "skipped": _skipped}
"""What is said of events that are not a loss."""


def _end_of_all(seconds: float) -> str:
    """Return the time left for all runs, and the hour at which they end."""
    end = datetime.now().astimezone() + timedelta(seconds=seconds)
    return f"all runs: {clock(seconds)} left, until {end:%a %d %b %H:%M}"
