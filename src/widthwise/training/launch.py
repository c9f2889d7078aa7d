"""Ranks from torchrun's environment, and stopping on signals after the current step."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from widthwise.mistakes import RunFailed


class RankLocalError(RunFailed):
    """An error of a single rank."""


def is_launched() -> bool:
    """Return True in a process started by torchrun or an equivalent launcher."""
    return "TORCHELASTIC_RUN_ID" in os.environ or n_launched() > 1


def n_launched() -> int:
    """Return the world size."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_silent(error: Exception | None = None) -> bool:
    """Return True if rank 0 reports instead of this rank. error: the error that ended this rank, if any."""
    return n_launched() > 1 and os.environ.get("RANK", "0") != "0" and not isinstance(error, RankLocalError)


class Interrupted(Exception):
    """A run that a signal ended after a step, with a checkpoint saved. The message tells how to continue."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.signal_number = signal_number

    def __reduce__(self) -> tuple[type["Interrupted"], tuple[str, int]]:
        return type(self), (str(self), self.signal_number)

    @property
    def exit_code(self) -> int:
        """130 for Ctrl-C, 143 for SIGTERM, 138 for SIGUSR1, as shells count."""
        return 128 + self.signal_number


@dataclass
class SignalWatch:
    """The signal that requested a stop."""

    received: int | None = None
    """Number of the first signal; None before it arrives."""


@contextmanager
def watch_signals(say: Callable[[str], None] | None = None) -> Iterator[SignalWatch]:
    """Let Ctrl-C, SIGTERM and SIGUSR1 only set `received`, so that the current step finishes.

    A second signal has its usual effect. Under torchrun it is ignored until the process ends, because the agent
    forwards signals that the workers may have received already. SLURM sends SIGUSR1 shortly before the time limit.
    Outside the main thread, where Python allows no handlers, nothing is watched.

    say: prints a message for the user. It is called in a thread, because the main thread may hold its lock when the
    signal arrives, and not in child processes, so that the message is printed once.
    """
    watch = SignalWatch()
    if threading.current_thread() is not threading.main_thread():
        yield watch
        return
    from multiprocessing import parent_process  # slow to import, and most verbs do not watch signals

    message_threads: list[threading.Thread] = []
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def on_signal(number: int, frame: FrameType | None) -> None:
        watch.received = watch.received or number
        if not is_launched():
            restore()
        if say is not None and parent_process() is None:
            text = "stopping after this step"
            if number == signal.SIGINT and not is_launched():
                text += "; again to stop now"
            thread = threading.Thread(target=say, args=(text,))
            message_threads.append(thread)
            thread.start()

    for number in previous:
        signal.signal(number, on_signal)
    try:
        yield watch
    finally:
        for thread in message_threads:
            thread.join()
        if watch.received and is_launched():
            for number in previous:
                signal.signal(number, signal.SIG_IGN)
        else:
            restore()
