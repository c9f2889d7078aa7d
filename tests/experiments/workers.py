"""Workers of one experiment in processes of their own, some of which are killed; run by test_workers.py.

workers.py RECIPE FOLDER KILL...    workers of the sweep or comparison of a recipe: each KILL is one, killed with
                                    SIGKILL after so many training steps, 0: not killed, and behind its first step it
                                    waits for the end of those that are; those of "6,0" begin at once, the next KILL
                                    after their end

Prints a line of JSON: the signal that ended each, 0 for none. They are forked so that importing torch is paid once.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from widthwise.data.config import open_data
from widthwise.experiments.compare import read_plan
from widthwise.experiments.running import run_experiment
from widthwise.experiments.sweep import read_sweep
from widthwise.training.observer import Observer, SilentObserver
from widthwise.yaml_io import read_recipe


class Killer(SilentObserver):
    """Kills its process after a number of steps, over all runs."""

    def __init__(self, n_steps: int):
        self._left = n_steps

    def step_done(self, step: int) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Survivor(SilentObserver):
    """Leaves work to those that will be killed, however late they are."""

    def __init__(self, doomed: int):
        """doomed: the end of a pipe whose other end only they hold."""
        self._doomed = doomed

    def step_done(self, step: int) -> None:
        os.read(self._doomed, 1)  # nothing, when they are dead


Work = Callable[[Observer], object]


def work_of(recipe: Path, folder: Path) -> Work:
    """What a worker of the recipe's experiment does; its corpus is made here, for all of them."""
    if "compare" in read_recipe(recipe):
        comparison = read_plan([recipe])
        open_data(comparison.reference.data)
        return lambda observer: run_experiment(comparison, folder, "widthwise compare", observer)
    sweep = read_sweep(recipe)
    open_data(sweep.reference.data)
    return lambda observer: run_experiment(sweep, folder, "widthwise sweep", observer)


def worker(work: Work, n_steps: int, pipe: tuple[int, int]) -> int:
    process = os.fork()
    if process:
        return process
    doomed, held = pipe
    if n_steps == 0:
        os.close(held)
    try:
        work(Killer(n_steps) if n_steps else Survivor(doomed))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def exit_signal(process: int) -> int:
    _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "a worker failed; its error stands above"
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.fsync = lambda handle: None  # a killed process loses nothing that it has handed to the system
    shared = work_of(Path(sys.argv[1]), Path(sys.argv[2]))
    signals = []
    for together in sys.argv[3:]:
        ends = os.pipe()
        workers = [worker(shared, int(n_steps), ends) for n_steps in together.split(",")]
        os.close(ends[1])
        signals += [exit_signal(process) for process in workers]
    print(json.dumps(signals))
