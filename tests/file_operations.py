"""A process that dies before a file operation of its own."""

import os
import signal
import sys

FILE_OPERATIONS = {"open", "os.mkdir", "os.rename"}
REMOVALS = {"os.remove", "os.rmdir"}


def die_before_operation(index: int, path: str) -> None:
    """Kills this process before its file operation number `index` inside `path`."""
    count = 0

    def watch(event: str, arguments: tuple) -> None:
        nonlocal count
        # What rmtree removes is named relative to its folder.
        if event in REMOVALS or (event in FILE_OPERATIONS and str(arguments[0]).startswith(path)):
            if count == index:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1

    sys.addaudithook(watch)
