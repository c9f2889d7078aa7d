"""The process that has datatrove tokenize the parts of a plan: `python -m widthwise.data.run_datatrove FOLDER WORKERS`.

It is one of its own so that datatrove's log and its workers stay apart from the process that prepares: that one may be
any script, and ends this one with all its workers.
"""

import os
import signal
import sys
import threading
from pathlib import Path

from widthwise.config_io import UserError
from widthwise.data.extras import require
from widthwise.data.parts import TokenizePart
from widthwise.data.plan import read_plan

MISTAKE = 2
"""The exit code where a UserError ended it, whose message it writes to standard output."""
SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_TO_END = 10.0


def main(folder: str, n_workers: int) -> int:
    """Runs the tasks that are not done; returns the exit code."""
    n_parts = read_plan(Path(folder)).n_parts
    executor = require("datatrove.executor.local", "prep").LocalPipelineExecutor(
        [TokenizePart(folder)],
        tasks=n_parts,
        workers=min(n_workers, n_parts),
        logging_dir=str(Path(folder).resolve() / "datatrove"),
    )
    failures: list[Exception] = []

    def run() -> None:
        try:
            executor.run()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    _wait(thread)
    if thread.is_alive():
        _say("one of them died; use fewer if memory is short")
        return 1
    for error in failures:
        _say(str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}")
        return MISTAKE if isinstance(error, UserError) else 1
    return 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _wait(thread: threading.Thread) -> None:
    """Until the thread ends, or cannot: datatrove's pool waits forever for a worker that was killed."""
    multiprocess = require("multiprocess", "prep")
    seen: set[int] = set()
    while thread.is_alive():
        thread.join(SECONDS_BETWEEN_LOOKS)
        alive = {child.pid for child in multiprocess.active_children()}
        if seen - alive:
            thread.join(SECONDS_TO_END)  # where the pool ends its workers, it is about to end itself
            return
        seen |= alive


def _end_with_parent() -> None:
    """Standard input is a pipe from the process that prepares, and ends with it, however that ends."""
    os.read(0, 1)  # sys.stdin would be locked while it is read, and a fork, which closes it, would wait for the lock
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os._exit(main(sys.argv[1], int(sys.argv[2])))  # does not wait for a pool that waits for the dead
