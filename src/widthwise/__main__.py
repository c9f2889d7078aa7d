"""`widthwise`, and `python -m widthwise` from a checkout that is not installed: the command line.

Ctrl-C, SIGTERM and SIGUSR1 are handled from the start of the process to its end. During training, `training.launch`
installs other handlers, with which the current step finishes first.
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
    """Run a verb. Ctrl-C prints one line in place of a traceback at any time."""
    handle_signals(leave)
    from widthwise.cli.main import main as run_verb  # slow to import

    handle_signals(stop)
    try:
        run_verb()
    finally:
        handle_signals(leave)


def handle_signals(handler: Callable[[int, FrameType | None], NoReturn]) -> None:
    """Install a handler. Ignored signals stay ignored; a shell lets background jobs ignore Ctrl-C."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def leave(number: int, frame: FrameType | None) -> NoReturn:
    """Print one line and end the process at once. For start-up and exit, when no files are being written."""
    with suppress(Exception):  # the signal may have interrupted a write
        sys.stdout.flush()
    if os.environ.get("RANK", "0") == "0":  # only one of several launched processes prints
        os.write(2, b"error: stopped by a signal; what has finished is kept\n")
    os._exit(128 + number)


def stop(number: int, frame: FrameType | None) -> NoReturn:
    """Raise Interrupted, so that incomplete folders are removed. During an import, end the process at once."""
    caller = frame
    while caller is not None:
        # A library that is being imported may suppress or replace the exception.
        if caller.f_code.co_filename.startswith("<frozen importlib"):
            leave(number, frame)
        caller = caller.f_back
    from widthwise.training.launch import Interrupted

    raise Interrupted("stopped by a signal; what has finished is kept", number)


if __name__ == "__main__":
    main()
