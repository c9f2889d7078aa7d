"""Several trainings at the same time on one machine, each in a process of its own with a share of its cores or GPUs."""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import torch

from widthwise.config_io import UserError
from widthwise.model.memory import free_memory
from widthwise.recipe.recipe import Recipe
from widthwise.run_dir import RunFailed
from widthwise.runs.rank_memory import memory_on_cpu
from widthwise.training.launch import Interrupted, is_launched, watch_signals
from widthwise.training.observer import Observer

Task = Callable[[Observer], object]
"""Trains something. It must be a function that can be pickled, as a partial of one of a module."""

SMALL_STEP_FLOPS = 5e11
"""Up to this many FLOPs of a step a second thread gains less than a second training beside it does: by a third at 4e10,
by 7 percent at 4.5e11, the largest that was measured (benchmarks/results/jobs_cpu.json)."""
SHORT_FLOPS = 5e11
"""Up to this many FLOPs of all runs together, other processes would hardly have started before the work was done."""
PROCESS_BYTES = 6e8
"""What a process takes that has imported torch and made its first products."""


@dataclass(frozen=True)
class Jobs:
    """How many trainings go on at a time."""

    n: int = 1
    n_threads: int | None = None
    """Threads of each training; None: as many as this process has."""

    @classmethod
    def of(cls, recipes: Iterable[Recipe], n_tasks: int, asked: int | None = None) -> "Jobs":
        """As many as the machine has room for, or as were asked for.

        The number of threads depends on the recipes and the machine alone, because results depend on it by a rounding:
        one where all steps are small, else all. A number in OMP_NUM_THREADS overrules it. Raises UserError for several
        jobs under torchrun, whose processes train every run together.
        """
        if is_launched():
            if asked not in (None, 1):
                raise UserError(f"--jobs: got {asked}; under torchrun all processes train one run, so it must be 1")
            return cls()
        if torch.cuda.is_available():
            return cls(min(n_tasks, asked or torch.cuda.device_count()))
        recipes = list(recipes)
        n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        is_small = all(recipe.training_flops / recipe.train.steps <= SMALL_STEP_FLOPS for recipe in recipes)
        n_threads = _n_threads_of_openmp() or (1 if is_small else n_cores)
        is_short = n_tasks * max(recipe.training_flops for recipe in recipes) <= SHORT_FLOPS
        n_jobs = asked or (1 if is_short else min(n_cores // n_threads, _n_with_room(recipes)))
        return cls(max(1, min(n_tasks, n_jobs)), n_threads)

    @contextmanager
    def threads(self) -> Iterator[None]:
        """In the block this process trains with as many threads as each of several would."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.n_threads or before)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def _n_threads_of_openmp() -> int | None:
    """What OMP_NUM_THREADS says; of a list such as "4,2", which is for nested regions, its first number.

    None where it is not set or does not begin with a positive whole number.
    """
    first, *_ = os.environ.get("OMP_NUM_THREADS", "").split(",")
    return int(first) or None if first.strip().isdecimal() else None


def _n_with_room(recipes: Iterable[Recipe]) -> int:
    """How many of the runs fit into the memory that is free, if all were as the one with the largest steps."""
    largest = max(recipes, key=lambda recipe: recipe.training_flops / recipe.train.steps)
    return int(free_memory() / (PROCESS_BYTES + memory_on_cpu(largest).total_bytes))


class Ended(NamedTuple):
    """The end of a task."""

    error: BaseException | None


class JobProcess:
    """A process that does one task after another; what it reports is shown here."""

    def __init__(self, place: int, jobs: Jobs, observer: Observer):
        """place: which of the jobs it is. observer: of whatever task it does."""
        self.observer, self._place, self._jobs = observer, place, jobs
        self._showing: ExitStack | None = None
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, self._place, self._jobs.n_threads))
        self._process.start()
        theirs.close()

    def begin(self, task: Task, showing: AbstractContextManager[Observer]) -> None:
        """Begin a task. showing: gives its observer, until it has ended."""
        if not self._process.is_alive():
            self._connection.close()
            self._start()
        self._showing = ExitStack()
        self._own_observer = self._showing.enter_context(showing)
        self._connection.send(task)

    @staticmethod
    def ready(processes: Iterable["JobProcess"], seconds: float) -> list["JobProcess"]:
        """Those that have something to report, as soon as there is one, or after so many seconds."""
        by_connection = {each._connection: each for each in processes}
        return [by_connection[each] for each in wait(list(by_connection), seconds)]  # pyright: ignore[reportArgumentType]

    def hear(self) -> Ended | None:
        """Pass on a report to the observer, or return the end of the task."""
        try:
            name, arguments = self._connection.recv()
        except (EOFError, ConnectionError):
            self._close()
            self._process.join()
            code = self._process.exitcode
            return Ended(RunFailed(f"a training process ended with code {code}; the runs can be resumed"))
        if name is None:
            self._close()
            return Ended(arguments)
        getattr(self._own_observer, name)(*arguments)
        return None

    def signal(self, number: int) -> None:
        """Ask the task to stop. Where it is already stopping this does nothing."""
        if self._process.pid is not None and self._process.is_alive():
            os.kill(self._process.pid, number)

    def end(self) -> None:
        """End the process, at once if it is at work."""
        if self._showing is not None:
            self._close()
            self._process.kill()
        self._connection.close()
        self._process.join()

    def _close(self) -> None:
        if self._showing is not None:
            self._showing.close()
        self._showing = None


def _work(connection: Connection, place: int, n_threads: int | None) -> None:
    """The life of a job's process."""
    os.setpgid(0, 0)  # a terminal's Ctrl-C goes to the first process alone, which tells the others once
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # outside of a task
    if n_threads is not None:
        torch.set_num_threads(n_threads)
    elif torch.cuda.is_available():
        torch.cuda.set_device(place % torch.cuda.device_count())
    with suppress(EOFError, ConnectionError):  # the first process has ended, or was killed
        while True:
            task = connection.recv()
            with watch_signals():  # one that comes before the task listens is sent again
                connection.send((None, _error_of(partial(task, _Sender(connection)))))


def _error_of(task: Callable[[], object]) -> BaseException | None:
    try:
        task()
    except (UserError, RunFailed, Interrupted, OSError) as error:
        return error
    except BaseException:
        return RunFailed(f"a training process failed: {traceback.format_exc()}")
    return None


class _Sender:
    """An observer that sends everything to the first process."""

    def __init__(self, connection: Connection):
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self._connection.send((name, arguments))

    def beside(self) -> "_Sender":
        return self
