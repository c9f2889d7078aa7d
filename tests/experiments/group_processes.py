"""A process group in two processes; run by test_workers.py. Each prints what it got of each case."""

import json
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from tiny_runs import tiny_recipe

from widthwise.__main__ import handle_signals, stop
from widthwise.experiments.jobs import ProcessGroup
from widthwise.mistakes import UserError
from widthwise.runs.train import launched_processes
from widthwise.training.launch import Interrupted


def value() -> list[int]:
    return [3, 5]


def mistake() -> NoReturn:
    raise UserError("nothing there")


def waiting(together: ProcessGroup) -> NoReturn:
    while True:
        together.wait(0.3)


def outcome(work: Callable[[], object]) -> object:
    try:
        return work()
    except (UserError, Interrupted) as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    handle_signals(stop)
    found: dict[str, object] = {}
    with launched_processes(tiny_recipe().train) as processes:
        together = ProcessGroup(processes)
        for work in (value, mistake):
            found[work.__name__] = outcome(partial(together.do, work))
        if os.environ["RANK"] == "1":  # the signal comes while this process waits for the first
            threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
        found["waiting"] = outcome(partial(together.do, partial(waiting, together)))
    print(json.dumps(found) + "\n", end="", flush=True)
