"""Ranks as torchrun's environment gives them, and stopping on signals after the current step."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from widthwise.mistakes import RunFailed


class RankLocalError(RunFailed):
    """An error that one rank alone raises."""


def is_launched() -> bool:
    """Return True in a process that torchrun or a substitute started."""
    return "TORCHELASTIC_RUN_ID" in os.environ or n_launched() > 1


def n_launched() -> int:
    """Return the world size."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_silent(error: Exception | None = None) -> bool:
    """Return True where another rank reports instead of this one. error: the one that ended this rank."""
    return n_launched() > 1 and os.environ.get("RANK", "0") != "0" and not isinstance(error, RankLocalError)


class Interrupted(Exception):
    """A signal ended the run after a step, with a checkpoint saved. Its message says how to go on."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.signal_number = signal_number

    def __reduce__(self) -> tuple[type["Interrupted"], tuple[str, int]]:
        return type(self), (str(self), self.signal_number)

    @property
    def exit_code(self) -> int:
        """130 for Ctrl-C, 143 for SIGTERM, 138 for SIGUSR1, as shells count."""
        return 128 + self.signal_number


def stopped_by(signal_number: int, run: Path, step: int, n_steps: int) -> Interrupted:
    """Return the exception that ends a run after saving a step's checkpoint."""
    return Interrupted(
        f"{run}: stopped at step {step} of {n_steps}, with a checkpoint; `widthwise resume {run}` continues it",
        signal_number,
    )


@contextmanager
def interruption_adds(advice: str) -> Iterator[None]:
    """An Interrupted of the block also says how to go on with what the block is a part of."""
    try:
        yield
    except Interrupted as stopped:
        raise Interrupted(f"{stopped}; {advice}", stopped.signal_number) from None


@dataclass
class SignalWatch:
    """`received` is the number of the signal that asked to stop, or None."""

    received: int | None = None


@contextmanager
def watch_signals(say: Callable[[str], None] | None = None) -> Iterator[SignalWatch]:
    """Ctrl-C, SIGTERM and SIGUSR1 only set `received`, so that the step at work is finished; a second one acts as ever.

    say: is told so, in a thread, because what it prints with may be in use where the signal comes. Only in a process
    that was started by none of ours, so that of several one speaks.
    SIGUSR1 is how SLURM says that the time is nearly over. Under torchrun a second one is ignored to the end of the
    process: its agent passes on what the workers may have got already. Outside the main thread, where Python allows no
    handlers, nothing is watched.
    """
    watch = SignalWatch()
    if threading.current_thread() is not threading.main_thread():
        yield watch
        return
    speakers: list[threading.Thread] = []
    from multiprocessing import parent_process  # slow to import, and most verbs watch nothing

    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def note(number: int, frame: FrameType | None) -> None:
        watch.received = watch.received or number
        if not is_launched():
            restore()
        if say is not None and parent_process() is None:
            has_second = number == signal.SIGINT and not is_launched()
            text = "stopping after this step" + ("; again to stop now" if has_second else "")
            speakers.append(threading.Thread(target=say, args=(text,)))
            speakers[-1].start()

    for number in previous:
        signal.signal(number, note)
    try:
        yield watch
    finally:
        for speaker in speakers:
            speaker.join()
        if watch.received and is_launched():
            for number in previous:
                signal.signal(number, signal.SIG_IGN)
        else:
            restore()
