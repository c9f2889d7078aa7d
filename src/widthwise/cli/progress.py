"""Progress of data preparation and runs: a bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from widthwise.records.run import REWOUND
from widthwise.training.launch import is_silent

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from widthwise.training.observer import Observer

SECONDS_BETWEEN_LINES = 5.0


@contextmanager
def shown_progress(console: "Console") -> Iterator["Observer"]:
    """An observer that shows preparations and runs, one after the other, on a console."""
    if not console.is_terminal or is_silent():
        yield LineObserver(console)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[loss]}"),
        TextColumn("{task.fields[remaining]}"),
    )
    with Progress(*columns, console=console) as bar:
        yield BarObserver(bar)


class _Pace:
    """How fast a stage of a preparation goes on, since its first report."""

    def __init__(self, stage: str = "", n_bytes: int = 0):
        self.stage = stage
        self._n_bytes_before, self._began = n_bytes, time.monotonic()

    def bytes_per_second(self, n_bytes: int) -> float | None:
        """None while nothing was done."""
        seconds = time.monotonic() - self._began
        return (n_bytes - self._n_bytes_before) / seconds if n_bytes > self._n_bytes_before and seconds > 0 else None


class BarObserver:
    """One bar for each preparation and each run."""

    def __init__(self, bar: "Progress"):
        self._bar = bar
        self._description = ""
        self._pace = _Pace()
        self._task = bar.add_task("", visible=False, rate="", loss="", remaining="")

    def preparing(self, stage: str, n_bytes: int, n_bytes_total: int | None) -> None:
        """Shows the progress in megabytes; the bar itself shows the time left where the total is known."""
        if stage != self._description:
            self._begin(stage, None)
            self._pace = _Pace(stage, n_bytes)
        rate = self._pace.bytes_per_second(n_bytes)
        self._bar.update(
            self._task,
            total=n_bytes_total and round(n_bytes_total / 1e6),
            completed=round(n_bytes / 1e6),
            rate="MB" if rate is None else f"MB  {rate / 1e6:.1f} MB/s",
        )

    def opened(self, run: Path) -> None: ...

    def starting(self, name: str, step: int, n_steps: int) -> None:
        self._begin(name, n_steps)
        # Counted from here, so that the steps of an earlier process do not enter the rate.
        self._bar.update(self._task, completed=step)

    def step_done(self, step: int) -> None:
        self._bar.update(self._task, completed=step)

    def record(self, record: dict[str, Any]) -> None:
        if record["event"] == "train":
            rate = f"{record['tokens_per_second']:,.0f} tokens/s"
            self._bar.update(self._task, rate=rate, loss=_loss(record))
        elif record["event"] == "validation":
            self.message(f"{self._description}: step {record['step']}  validation {_loss(record)}")
        elif record["event"] in _SENTENCES:
            self.message(f"{self._description}: step {record['step']}  {_SENTENCES[record['event']](record)}")

    def remaining(self, seconds: float) -> None:
        self._bar.update(self._task, remaining=_end_of_all(seconds))

    def message(self, text: str) -> None:
        self._bar.console.print(text, highlight=False, markup=False)

    def beside(self) -> "BarObserver":
        return BarObserver(self._bar)

    def _begin(self, description: str, total: int | None) -> None:
        self._bar.remove_task(self._task)
        self._description = description
        self._task = self._bar.add_task(description, total=total, rate="", loss="", remaining="")


class LineObserver:
    """One line per record."""

    def __init__(self, console: "Console"):
        self._console = console
        self._pace, self._shown_at = _Pace(), 0.0
        self._name, self._n_steps, self._remaining = "", 0, ""

    def preparing(self, stage: str, n_bytes: int, n_bytes_total: int | None) -> None:
        """Prints at most one line every few seconds."""
        now = time.monotonic()
        if stage != self._pace.stage:
            self._pace = _Pace(stage, n_bytes)
        elif now - self._shown_at < SECONDS_BETWEEN_LINES:
            return
        self._shown_at = now
        line = f"{stage}: {n_bytes / 1e6:.1f}" + (f" of {n_bytes_total / 1e6:.1f} MB" if n_bytes_total else " MB")
        if rate := self._pace.bytes_per_second(n_bytes):
            line += f"  {rate / 1e6:.1f} MB/s"
            if n_bytes_total:
                line += f"  {_duration((n_bytes_total - n_bytes) / rate)} left"
        self.message(line)

    def opened(self, run: Path) -> None: ...

    def starting(self, name: str, step: int, n_steps: int) -> None:
        self._name, self._n_steps, self._remaining = name, n_steps, ""

    def step_done(self, step: int) -> None: ...

    def record(self, record: dict[str, Any]) -> None:
        if record["event"] in ("stopped", "norms"):
            return  # the first is said by the error that ends the run, the others are too many numbers
        if record["event"] in _SENTENCES:
            self.message(f"{self._name}: step {record['step']}/{self._n_steps}  {_SENTENCES[record['event']](record)}")
            return
        line = f"{self._name}: step {record['step']}/{self._n_steps}  {record['event']} {_loss(record)}"
        if record["event"] == "train":
            remaining = (self._n_steps - record["step"]) * record["step_seconds"]
            line += f"  lr {record['lr']:.3g}  {record['tokens_per_second']:,.0f} tokens/s  {_duration(remaining)} left"
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


def _rewound(record: dict[str, Any]) -> str:
    return f"went back from step {record['from_step']}: {record['reason']}"


_SENTENCES = {"growth": _growth, "skipped": _skipped, REWOUND: _rewound}
"""What is said of events that are not a loss."""


def _end_of_all(seconds: float) -> str:
    """How long all runs still take, and when that is by the clock."""
    end = datetime.now().astimezone() + timedelta(seconds=seconds)
    return f"all runs: {_duration(seconds)} left, until {end:%a %d %b %H:%M}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
