"""What Ctrl-C and SIGTERM do, but while steps run: training finishes the step at work first."""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)
Handler = Callable[[int, FrameType | None], NoReturn]


def leave_at_once() -> None:
    """From here on a signal ends the process with one line: for its start and its end, when nothing is at work."""
    _handle_with(_leave)


def stop_by_exception() -> None:
    """From here on a signal raises Interrupted, behind which half-written folders are removed."""
    _handle_with(_stop)


def _handle_with(handler: Handler) -> None:
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as of a shell's job in the background
            signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    with suppress(Exception):  # the signal may have come while something was written there
        sys.stdout.flush()
    os.write(2, b"error: stopped by a signal; what has finished is kept\n")
    os._exit(128 + number)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    if _is_importing(frame):
        _leave(number, frame)
    from widthwise.training.stopping import Interrupted

    raise Interrupted("stopped by a signal; what has finished is kept", number)


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being loaded: libraries swallow an exception then, or make another error of it."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
