"""Several trainings at the same time on one machine, each in a process of its own with a share of its cores or GPUs."""

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from widthwise.config_io import UserError
from widthwise.model.memory import free_memory
from widthwise.recipe.recipe import Recipe
from widthwise.run_dir import RunFailed
from widthwise.runs.rank_memory import memory_on_cpu
from widthwise.training.launch import is_launched
from widthwise.training.observer import Observer
from widthwise.training.stopping import Interrupted, watch_signals

Task = Callable[[Observer], object]
"""Trains something. It must be a function that can be pickled, as a partial of one of a module."""

SMALL_STEP_FLOPS = 5e11
"""Up to this many FLOPs of a step a second thread gains less than a second training beside it does: by a third at 4e10,
by 7 percent at 4.5e11, the largest that was measured (benchmarks/results/jobs_cpu.json)."""
SHORT_FLOPS = 5e11
"""Up to this many FLOPs of all runs together, other processes would hardly have started before the work was done."""
PROCESS_BYTES = 6e8
"""What a process takes that has imported torch and made its first products."""
SECONDS_BETWEEN_SIGNALS = 1.0


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


Observing = Callable[[str, list[str], Observer], AbstractContextManager[Observer]]
"""A task that begins, those that still wait, and what shows the task -> its observer, until it has ended."""


def do_all(tasks: Mapping[str, Task], jobs: Jobs, observer: Observer, observing: Observing) -> None:
    """Does all tasks in their order, jobs.n at a time; a single one at a time in this process.

    Ctrl-C and SIGTERM stop all of them, each after the step at work, with a checkpoint; then Interrupted is raised. The
    first error of one stops the others in the same way, and is raised.
    """
    waiting = dict(tasks)
    if jobs.n == 1:
        with jobs.threads():
            while waiting:
                key, task = _first_of(waiting)
                with observing(key, list(waiting), observer) as own:
                    task(own)
        return
    with watch_signals(observer.message) as watch, ExitStack() as ending:
        workers = [_Worker(place, jobs, observer.beside()) for place in range(min(jobs.n, len(tasks)))]
        for worker in workers:
            ending.callback(worker.end)
        _Foreman(waiting, workers, observing).work(lambda: watch.received)


def share_with_others(work: Task, jobs: Jobs, observer: Observer) -> None:
    """Does the work in jobs.n processes, which divide it among themselves; nothing where one is enough."""
    if jobs.n > 1:
        workers = {f"worker {place}": work for place in range(1, jobs.n + 1)}
        do_all(workers, jobs, observer, lambda _key, _waiting, own: nullcontext(own))


def _first_of(waiting: dict[str, Task]) -> tuple[str, Task]:
    """Takes the first one out."""
    key = next(iter(waiting))
    return key, waiting.pop(key)


class _Worker:
    """A process that does one task after another, and what it says."""

    def __init__(self, place: int, jobs: Jobs, observer: Observer):
        """place: which of the jobs it is. observer: what shows its tasks."""
        context = multiprocessing.get_context("spawn")
        self.observer = observer
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, place, jobs.n_threads))
        self._process.start()
        theirs.close()
        self._task: ExitStack | None = None

    @property
    def is_busy(self) -> bool:
        return self._task is not None

    def begin(self, task: Task, observing: AbstractContextManager[Observer]) -> None:
        self._task = ExitStack()
        self._own_observer = self._task.enter_context(observing)
        self.connection.send(task)

    def hear(self) -> BaseException | None:
        """Passes on what it says. Returns what ended its task, if that was an error."""
        try:
            name, arguments = self.connection.recv()
        except EOFError:
            self._close()
            self._process.join()
            return RunFailed(f"a training process ended with code {self._process.exitcode}; the runs can be resumed")
        if name is None:
            self._close()
            return arguments
        getattr(self._own_observer, name)(*arguments)
        return None

    def signal(self, number: int) -> None:
        """Asks the task to stop. Where it is already stopping this does nothing."""
        if self.is_busy and self._process.pid is not None and self._process.is_alive():
            os.kill(self._process.pid, number)

    def end(self) -> None:
        """Ends the process, at once if it is at work."""
        if self.is_busy:
            self._close()
            self._process.kill()
        self.connection.close()
        self._process.join()

    def _close(self) -> None:
        if self._task is not None:
            self._task.close()
        self._task = None


class _Foreman:
    """Gives the tasks to the workers."""

    def __init__(self, tasks: dict[str, Task], workers: list[_Worker], observing: Observing):
        self._waiting, self._workers, self._observing = tasks, workers, observing
        self._errors: list[BaseException] = []

    def work(self, received: Callable[[], int | None]) -> None:
        """received: the signal that asked this process to stop, or None."""
        while True:
            stop = signal.SIGTERM if self._errors else received()
            for worker in self._workers:
                if stop is not None:
                    worker.signal(stop)
                elif self._waiting and not worker.is_busy:
                    self._begin_next(worker)
            busy = [worker for worker in self._workers if worker.is_busy]
            if not busy:
                break
            ready = wait([worker.connection for worker in busy], SECONDS_BETWEEN_SIGNALS if stop else 0.2)
            for worker in busy:
                if worker.connection in ready and (error := worker.hear()) is not None:
                    self._errors.append(error)
        if self._errors:
            raise self._first_cause()
        if (number := received()) is not None:
            raise Interrupted("stopped before the next run", number)

    def _first_cause(self) -> BaseException:
        """What stopped the others, if that was no signal."""
        stopped = [error for error in self._errors if isinstance(error, Interrupted)]
        if len(stopped) < len(self._errors):
            return next(error for error in self._errors if not isinstance(error, Interrupted))
        if len(stopped) == 1:
            return stopped[0]
        return Interrupted(f"{len(stopped)} runs stopped, each with a checkpoint", stopped[0].signal_number)

    def _begin_next(self, worker: _Worker) -> None:
        key, task = _first_of(self._waiting)
        worker.begin(task, self._observing(key, list(self._waiting), worker.observer))


def _work(connection: Connection, place: int, n_threads: int | None) -> None:
    """What a worker's process does."""
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
