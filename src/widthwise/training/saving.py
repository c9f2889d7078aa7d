"""When checkpoints are written: at once, or while training goes on."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from widthwise.training.checkpoint import Snapshot
from widthwise.training.processes import Processes

Writing = Callable[[Snapshot, Processes], None]
"""Writes a snapshot together with the same process's thread in the others."""


class Saver:
    """Writes one snapshot after the other. At the end of its block all are on the disk."""

    def __init__(self, processes: Processes, in_background: bool):
        """in_background: copies what is to be written, and leaves the writing to a thread."""
        self._thread = ThreadPoolExecutor(1, "checkpoint") if in_background else None
        self._processes = processes.apart() if in_background else processes
        self._pending: Future[None] | None = None

    def save(self, snapshot: Snapshot, write: Writing) -> None:
        """Has a snapshot written, after the one before. Raises what `write` raises, or what it raised the last time."""
        if self._thread is None:
            write(snapshot, self._processes)
            return
        self.wait()
        self._pending = self._thread.submit(write, snapshot.copied(), self._processes)

    def wait(self) -> None:
        """Returns when the last snapshot is written. Raises what went wrong with it."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._thread.shutdown()
        if kind is None:
            self.wait()
