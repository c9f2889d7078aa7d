"""Ctrl-C, SIGTERM and SIGUSR1 outside of training steps (during training, the current step finishes first)."""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
Handler = Callable[[int, FrameType | None], NoReturn]


def leave_at_once() -> None:
    """Install handlers with which a signal ends the process with one line: for start-up and exit, without work."""
    _handle_with(_leave)


def stop_by_exception() -> None:
    """Install handlers with which a signal raises Interrupted, so that incomplete folders are removed."""
    _handle_with(_stop)


def _handle_with(handler: Handler) -> None:
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as in a background job of a shell
            signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    with suppress(Exception):  # the signal may have interrupted a write
        sys.stdout.flush()
    if os.environ.get("RANK", "0") == "0":  # only one of several launched processes prints
        os.write(2, b"error: stopped by a signal; what has finished is kept\n")
    os._exit(128 + number)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    if _is_importing(frame):
        _leave(number, frame)
    from widthwise.training.launch import Interrupted

    raise Interrupted("stopped by a signal; what has finished is kept", number)


def _is_importing(frame: FrameType | None) -> bool:
    """Return True while a module is being imported: libraries may suppress or replace an exception then."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
