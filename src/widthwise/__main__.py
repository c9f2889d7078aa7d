"""`widthwise`, and `python -m widthwise` from a checkout that is not installed: the command line.

The process handles Ctrl-C, SIGTERM and SIGUSR1 from its start to its end. During training, `training.launch` handles
them in place of these handlers: the current step finishes first.
"""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def main() -> None:
    """Run a verb; Ctrl-C prints one line at any time."""
    handle_signals(leave)
    from widthwise.cli.main import main as run_verb  # slow to import

    handle_signals(stop)
    try:
        run_verb()
    finally:
        handle_signals(leave)


def handle_signals(handler: Callable[[int, FrameType | None], NoReturn]) -> None:
    """Install a handler. Signals that the process ignores, as in a background job of a shell, stay ignored."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def leave(number: int, frame: FrameType | None) -> NoReturn:
    """End the process with one line: for start-up and exit, without work."""
    with suppress(Exception):  # the signal may have interrupted a write
        sys.stdout.flush()
    if os.environ.get("RANK", "0") == "0":  # only one of several launched processes prints
        os.write(2, b"error: stopped by a signal; what has finished is kept\n")
    os._exit(128 + number)


def stop(number: int, frame: FrameType | None) -> NoReturn:
    """Raise Interrupted, so that incomplete folders are removed."""
    caller = frame
    while caller is not None:
        # Libraries may suppress or replace an exception while a module is imported.
        if caller.f_code.co_filename.startswith("<frozen importlib"):
            leave(number, frame)
        caller = caller.f_back
    from widthwise.training.launch import Interrupted

    raise Interrupted("stopped by a signal; what has finished is kept", number)


if __name__ == "__main__":
    main()
