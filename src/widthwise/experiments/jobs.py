"""The processes of one worker. Each trains a different run on a share of the machine's cores or GPUs. Under torchrun,
all train every run together.
"""

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar, cast

import torch

from widthwise.data.config import DataCache
from widthwise.experiments.plan import Plan
from widthwise.mistakes import RunFailed, UserError
from widthwise.model.memory import free_memory
from widthwise.recipe.recipe import Recipe
from widthwise.records.run import RunResult
from widthwise.runs.rank_memory import ShardedModel
from widthwise.runs.train import train_or_resume
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

    @property
    def name(self) -> str:
        """Name of its folder, unique within an experiment."""
        return self.path.name

    def train(self, observer: Observer | None = None, data_cache: DataCache | None = None) -> RunResult:
        """Train the run to its end, from its last checkpoint. Raises the errors of `runs.train.train`."""
        return train_or_resume(self.recipe, self.path, observer, data_cache)


@dataclass(frozen=True)
class _Order:
    """The next work of the processes other than the first.

    run: the run to train; None only shows that the first process is alive.
    """

    run: Run | None = None


@dataclass(frozen=True)
class ProcessGroup:
    """The processes that train each run together; the first decides which runs are trained."""

    processes: Processes
    data_cache: DataCache = field(default_factory=DataCache)

    def do(self, work: Callable[[], T]) -> T:
        """Run `work` in the first process; the other processes join each run that it trains.

        Returns the value of `work`, or raises its error, in all processes.
        """
        if self.processes.is_rank_zero:
            return self.processes.on_rank_zero(work)
        with watch_signals() as watch:
            while True:
                received = self.processes.on_rank_zero(lambda: None)  # an order of `_send`, or the value of `work`
                if not isinstance(received, _Order):
                    return cast(T, received)
                signal_number = self.processes.all_reduce_max(watch.received or 0)[0]  # together with `_send`
                if signal_number or received.run is None:
                    continue
                try:
                    received.run.train(data_cache=self.data_cache)
                except RankLocalError:
                    raise
                except (UserError, RunFailed, Interrupted):
                    pass  # the first process gets the same error, and handles it

    def train(self, run: Run, observer: Observer) -> RunResult:
        """Train a run in all processes. Call inside `do`."""
        self._send(_Order(run))
        return run.train(observer, self.data_cache)

    def wait(self, seconds: float) -> None:
        """Wait. Raises Interrupted after a signal to any of the processes. Call inside `do`."""
        deadline = time.monotonic() + seconds
        with watch_signals() as watch:
            while watch.received is None and (remaining := deadline - time.monotonic()) > 0:
                time.sleep(min(remaining, 0.1))
        if watch.received is not None:
            raise Interrupted("stopped while waiting", watch.received)
        self._send(_Order())

    def _send(self, order: _Order) -> None:
        """Send an order. Raises Interrupted if another process received a signal while it waited for the order."""
        self.processes.on_rank_zero(lambda: order)
        signal_number = int(self.processes.all_reduce_max(0)[0])
        if signal_number:
            raise Interrupted("stopped before the next run", signal_number)


Task = Callable[[Observer], object]
"""A training: a function that can be pickled, such as a partial of a module-level function."""

SMALL_STEP_FLOPS = 5e11
"""Largest FLOPs of a step for which two trainings at once, of one thread each, are faster than in turn on two threads:
by a third at 4e10, by 7 percent at 4.5e11, the largest measured step (benchmarks/results/jobs_cpu.json)."""
SHORT_FLOPS = 5e11
"""Runs of at most these FLOPs together finish before other processes would have started."""
PROCESS_BYTES = 6e8
"""Memory of a process after importing torch and computing its first products."""


@dataclass(frozen=True)
class Jobs:
    """Number of trainings at a time, and number of threads of each."""

    n: int = 1
    n_threads: int | None = None
    """Threads of each training; None: as many as in this process."""

    @classmethod
    def of(cls, plan: Plan, requested: int | None = None) -> "Jobs":
        """Return the requested number of jobs, or as many as fit on this machine.

        The number of threads changes rounding, so it depends only on the recipes and the machine: one if all steps are
        small, else all cores. OMP_NUM_THREADS overrides it. Raises UserError for several jobs under torchrun, whose
        processes train every run together.
        """
        if is_launched():
            if requested not in (None, 1):
                raise UserError(f"--jobs: got {requested}; under torchrun all processes train one run, so it must be 1")
            return cls()
        n_tasks = plan.n_points * len(plan.seeds)
        if torch.cuda.is_available():
            return cls(min(n_tasks, requested or torch.cuda.device_count()))
        recipes = [plan.reference, *plan.recipes.values()]
        n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        is_small = all(recipe.training_flops / recipe.train.steps <= SMALL_STEP_FLOPS for recipe in recipes)
        variable = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]  # "4,2" is for nested regions
        n_threads = int(variable) if variable.strip().isdecimal() else 0
        n_threads = n_threads or (1 if is_small else n_cores)
        if requested is None and n_tasks * max(recipe.training_flops for recipe in recipes) <= SHORT_FLOPS:
            return cls(1, n_threads)
        if requested is None:  # as many as fit into free memory, if all were like the run with the largest steps
            largest = max(recipes, key=lambda recipe: recipe.training_flops / recipe.train.steps)
            memory = ShardedModel(largest, "cpu").memory(largest.train)  # nothing is sharded
            n_fitting = int(free_memory() / (PROCESS_BYTES + memory.total_bytes))
            requested = min(n_cores // n_threads, n_fitting)
        return cls(max(1, min(n_tasks, requested)), n_threads)

    @contextmanager
    def threads(self) -> Iterator[None]:
        """Use the number of threads of one job inside the block."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.n_threads or before)
        try:
            yield
        finally:
            torch.set_num_threads(before)


class JobProcess:
    """A child process that does one task after another and reports to an observer in the parent."""

    connection: Connection
    """Where its reports arrive, one by one."""

    def __init__(self, index: int, jobs: Jobs, observer: Observer):
        """index: of the process among the jobs. observer: for all tasks; the caller wraps it for each `begin`."""
        self.observer = observer
        self._index = index
        self._jobs = jobs
        self._task_observer: Observer | None = None
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, child_connection = context.Pipe()
        self._process = context.Process(target=_work, args=(child_connection, self._index, self._jobs.n_threads))
        self._process.start()
        child_connection.close()

    def begin(self, task: Task, observer: Observer) -> None:
        """Begin a task, which reports to the observer, in a new process if the last one died."""
        if not self._process.is_alive():
            self.connection.close()
            self._start()
        self._task_observer = observer
        self.connection.send(task)

    def receive(self) -> tuple[bool, BaseException | None]:
        """Wait for a report, and forward it to the observer. Return whether the task has ended, and its error or None.

        A report is the name of an observer's method and its arguments, or at the end None and the error.
        """
        try:
            name, arguments = self.connection.recv()
        except (EOFError, ConnectionError):
            self._task_observer = None
            self._process.join()
            code = self._process.exitcode
            return True, RunFailed(f"a training process ended with code {code}; the runs can be resumed")
        if name is None:
            self._task_observer = None
            return True, arguments
        getattr(self._task_observer, name)(*arguments)
        return False, None

    def signal(self, number: int) -> None:
        """Send a signal that stops the task. Repeated signals have no effect, because `_work` catches them."""
        if self._process.pid is not None and self._process.is_alive():
            os.kill(self._process.pid, number)

    def end(self) -> None:
        """End the process; kill it if a task is running."""
        if self._task_observer is not None:
            self._process.kill()
        self.connection.close()
        self._process.join()


def _work(connection: Connection, index: int, n_threads: int | None) -> None:
    """Do tasks until the first process ends: the main function of a job's process."""
    os.setpgid(0, 0)  # Ctrl-C in a terminal reaches only the first process, which signals the others once
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # outside of a task
    if n_threads is not None:
        torch.set_num_threads(n_threads)
    elif torch.cuda.is_available():
        torch.cuda.set_device(index % torch.cuda.device_count())
    with suppress(EOFError, ConnectionError):  # the first process has ended, or was killed
        while True:
            task = connection.recv()
            error: BaseException | None = None
            with watch_signals():  # a signal before the task watches is ignored; the scheduler repeats it
                try:
                    task(_Sender(connection))
                except (UserError, RunFailed, Interrupted, OSError) as expected:
                    error = expected
                except BaseException:
                    error = RunFailed(f"a training process failed: {traceback.format_exc()}")
                connection.send((None, error))
            error = None  # its traceback holds the tensors of the run, which must not stay while the process waits


@dataclass(frozen=True)
class _Sender:
    """An observer that sends all calls to the first process."""

    connection: Connection

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.connection.send((name, arguments))
