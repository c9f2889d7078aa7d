"""The processes of one worker: several trainings at a time, each in its process with a share of the machine's
cores or GPUs, or all processes of torchrun, which train every run together.
"""

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import torch

from widthwise.config_io import UserError
from widthwise.data.config import DataCache
from widthwise.mistakes import RunFailed
from widthwise.model.memory import free_memory
from widthwise.recipe.recipe import Recipe
from widthwise.records.run import RunResult
from widthwise.runs.rank_memory import memory_on_cpu
from widthwise.runs.train import launched_processes, resume, train_or_resume
from widthwise.training.launch import Interrupted, RankLocalError, is_launched, watch_signals
from widthwise.training.observer import Observer
from widthwise.training.processes import Processes

T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """One run of an experiment."""

    path: Path
    recipe: Recipe
    point: str
    grown_at: int | None = None
    """Step at which another run was grown into this one; None for a run from the start."""

    @property
    def name(self) -> str:
        """Name of its folder, unique within an experiment."""
        return self.path.name

    def train(self, observer: Observer | None = None, data_cache: DataCache | None = None) -> RunResult:
        """Train it to its end, from its last checkpoint. Raises as `runs.train.train`."""
        if self.grown_at is not None:
            return resume(self.path, observer)
        return train_or_resume(self.recipe, self.path, observer, data_cache)


@dataclass(frozen=True)
class _Order:
    """The next work of the other processes."""

    run: Run | None = None
    """The run to train; None: nothing, but they see that the first process is still there."""


@contextmanager
def process_group(recipe: Recipe) -> Iterator["ProcessGroup"]:
    """Join the processes that were started together. recipe: any of the experiment."""
    with launched_processes(recipe.train) as processes:
        yield ProcessGroup(processes, DataCache())


class ProcessGroup:
    """The first process decides what is trained; the others train it with it."""

    def __init__(self, processes: Processes, data_cache: DataCache):
        self._processes, self.data_cache = processes, data_cache

    def do(self, work: Callable[[], T]) -> T:
        """Run `work` in the first process, the others helping with each run it trains. All get its value or error."""
        if self._processes.is_rank_zero:
            return self._processes.on_rank_zero(work)
        with watch_signals() as watch:
            while isinstance(told := self._processes.on_rank_zero(_not_here), _Order):
                if self._signal(watch.received) or told.run is None:
                    continue
                try:
                    told.run.train(data_cache=self.data_cache)
                except (UserError, RunFailed, Interrupted) as error:
                    if isinstance(error, RankLocalError):
                        raise  # of the others the first process has the same, and decides what comes of it
        return cast(T, told)

    def train(self, run: Run, observer: Observer) -> RunResult:
        """Train a run, by all processes. Only inside of `do`."""
        self._tell(_Order(run))
        return run.train(observer, self.data_cache)

    def check_data(self, recipe: Recipe, observer: Observer) -> None:
        """Prepare and check the data of all runs. Raises UserError if there are none, before a run does."""
        data = self.data_cache.open(recipe.data, observer.preparing)
        recipe.held_out(data).check()
        self.data_cache.check(recipe.data, observer.preparing)

    def wait(self, seconds: float) -> None:
        """Wait. Raises Interrupted after Ctrl-C or SIGTERM. Only inside of `do`."""
        deadline = time.monotonic() + seconds
        with watch_signals() as watch:
            while watch.received is None and (left := deadline - time.monotonic()) > 0:
                time.sleep(min(left, 0.1))
        if watch.received is not None:
            raise Interrupted("stopped while waiting", watch.received)
        self._tell(_Order())

    def _tell(self, order: _Order) -> None:
        self._processes.on_rank_zero(lambda: order)
        if received := self._signal(None):
            raise Interrupted("stopped before the next run", received)

    def _signal(self, received: int | None) -> int:
        """Return the signal that any process received while it waited for an order; 0 if none."""
        return int(self._processes.all_reduce_max(received or 0)[0])


def _not_here() -> NoReturn:
    raise AssertionError("only the first process decides")


Task = Callable[[Observer], object]
"""A training: a function that can be pickled, such as a partial of one of a module."""

SMALL_STEP_FLOPS = 5e11
"""Up to this many FLOPs of a step a second thread gains less than a second training beside it does: by a third at 4e10,
by 7 percent at 4.5e11, the largest that was measured (benchmarks/results/jobs_cpu.json)."""
SHORT_FLOPS = 5e11
"""Up to this many FLOPs of all runs together, other processes would hardly have started before the work was done."""
PROCESS_BYTES = 6e8
"""Memory of a process that has imported torch and made its first products."""


@dataclass(frozen=True)
class Jobs:
    """Number of trainings at a time, and of the threads of each."""

    n: int = 1
    n_threads: int | None = None
    """Threads of each training; None: as many as this process has."""

    @classmethod
    def of(cls, recipes: Iterable[Recipe], n_tasks: int, asked: int | None = None) -> "Jobs":
        """Return as many jobs as the machine has room for, or the given number.

        The number of threads depends on the recipes and the machine alone, because results depend on it by a rounding:
        one if all steps are small, else all cores. OMP_NUM_THREADS overrides it. Raises UserError for several
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
        requested, *_ = os.environ.get("OMP_NUM_THREADS", "").split(",")  # "4,2" is for nested regions
        n_threads = int(requested) if requested.strip().isdecimal() else 0
        n_threads = n_threads or (1 if is_small else n_cores)
        is_short = n_tasks * max(recipe.training_flops for recipe in recipes) <= SHORT_FLOPS
        n_jobs = asked or (1 if is_short else min(n_cores // n_threads, _n_with_room(recipes)))
        return cls(max(1, min(n_tasks, n_jobs)), n_threads)

    @contextmanager
    def threads(self) -> Iterator[None]:
        """Train in the block with the number of threads that each of several jobs would have."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.n_threads or before)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def _n_with_room(recipes: Iterable[Recipe]) -> int:
    """Return the number of runs that fit into free memory, if all were like the one with the largest steps."""
    largest = max(recipes, key=lambda recipe: recipe.training_flops / recipe.train.steps)
    return int(free_memory() / (PROCESS_BYTES + memory_on_cpu(largest).total_bytes))


class JobProcess:
    """A process that does one task after another and reports to an observer here."""

    def __init__(self, place: int, jobs: Jobs, observer: Observer):
        """place: index among the jobs. observer: of all its tasks."""
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
        """Return the processes with something to report, as soon as there is one, or after so many seconds."""
        by_connection = {each._connection: each for each in processes}
        return [by_connection[each] for each in wait(list(by_connection), seconds)]  # pyright: ignore[reportArgumentType]

    def receive(self) -> tuple[bool, BaseException | None]:
        """Pass on a report to the observer; return True and the error, if there is one, at the end of the task."""
        try:
            name, arguments = self._connection.recv()
        except (EOFError, ConnectionError):
            self._close()
            self._process.join()
            code = self._process.exitcode
            return True, RunFailed(f"a training process ended with code {code}; the runs can be resumed")
        if name is None:
            self._close()
            return True, arguments
        getattr(self._own_observer, name)(*arguments)
        return False, None

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
    """Do tasks until the first process ends: the main function of a job's process."""
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
