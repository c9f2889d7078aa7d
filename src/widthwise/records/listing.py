"""A listing of runs, as `widthwise runs` shows it, and the plan of an experiment that has not finished."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from widthwise.records.record import Known, Record, StoredRecord

RunState = Literal["running", "finished", "stopped", "failed", "waiting", "unreadable"]


class ListedRun(Record):
    """One run in a listing. What is not known yet is None."""

    path: str
    state: RunState
    """running: a process holds its folder. stopped: begun, not finished, and nobody is at work on it. failed: it ended
    itself, as when the loss diverged. waiting: its experiment has not begun it. unreadable: its files are broken."""
    step: int | None = None
    """That of its last record."""
    n_steps: int | None = None
    loss: Known = None
    """Training loss of its last record of training."""
    val_loss: Known = None
    """Held-out loss of its last validation."""
    tokens_per_second: Known = None
    age_seconds: Known = None
    """Time since its last record."""
    n_bytes: int | None = None
    """All its files together."""
    reason: str | None = None
    """Why it has failed, or cannot be read."""


class PlannedRun(Record):
    """One run of an experiment, begun or not."""

    path: str
    """Inside the folder of the experiment."""
    variant: str
    seed: int
    n_steps: int


class PlannedRuns(StoredRecord):
    """`planned.json`: all runs of an experiment, written before the first of them begins."""

    file_name: ClassVar[str] = "planned.json"

    title: str
    command: str
    baseline: str
    runs: Sequence[PlannedRun]
    """In the order in which they are trained."""
