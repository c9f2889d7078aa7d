"""The processes of one worker: one that is alone, or those that torchrun started, which train every run together."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar, cast

from widthwise.config_io import UserError
from widthwise.recipe.recipe import Recipe
from widthwise.records.run import RunResult
from widthwise.run_dir import RunFailed
from widthwise.runs.data_identity import DataCache
from widthwise.runs.train import resume, train_or_resume
from widthwise.training.joining import launched_processes
from widthwise.training.launch import Interrupted, RankLocalError, watch_signals
from widthwise.training.observer import Observer
from widthwise.training.processes import Processes

T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """One run of an experiment."""

    path: Path
    recipe: Recipe
    point: str
    """Name of the point of which it is a run."""
    grown_at: int | None = None
    """Step at which another run was grown into this one; None for a run that begins by itself."""

    @property
    def name(self) -> str:
        """Name of its folder, by which the runs of an experiment are told apart."""
        return self.path.name

    def train(self, observer: Observer | None = None, data_cache: DataCache | None = None) -> RunResult:
        """Train it to its end, from wherever it stands. Raises as `runs.train.train`."""
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
    """The processes that were started together. recipe: any of the experiment. Raises as `launched_processes`."""
    with launched_processes(recipe.train) as processes:
        yield ProcessGroup(processes, DataCache())


class ProcessGroup:
    """The first process decides what is trained; the others train it with it."""

    def __init__(self, processes: Processes, data_cache: DataCache):
        self._processes, self.data_cache = processes, data_cache

    def do(self, work: Callable[[], T]) -> T:
        """What the first process does, the others helping with each run it trains. All get its value, or its error."""
        if self._processes.is_rank_zero:
            return self._processes.on_rank_zero(work)
        with watch_signals() as watch:
            while isinstance(told := self._processes.on_rank_zero(_not_here), _Order):
                if not self._signal(watch.received):
                    _obey(told, self.data_cache)
        return cast(T, told)

    def train(self, run: Run, observer: Observer) -> RunResult:
        """Train a run, by all processes. Only inside of `do`."""
        self._tell(_Order(run))
        return run.train(observer, self.data_cache)

    def check_data(self, recipe: Recipe, observer: Observer) -> None:
        """Prepares and checks the data of all runs. Raises UserError where there are none, before a run does."""
        data = self.data_cache.open(recipe.data, observer.preparing)
        recipe.held_out(data).check()
        self.data_cache.check(recipe.data, observer.preparing)

    def wait(self, seconds: float) -> None:
        """Waits. Raises Interrupted after Ctrl-C or SIGTERM. Only inside of `do`."""
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
        """The signal that any process got while it was waiting for an order; 0 if none."""
        return int(self._processes.all_reduce_max(received or 0)[0])


def _not_here() -> NoReturn:
    raise AssertionError("only the first process decides")


def _obey(order: _Order, data_cache: DataCache) -> None:
    if order.run is None:
        return
    try:
        order.run.train(data_cache=data_cache)
    except RankLocalError:
        raise
    except (UserError, RunFailed, Interrupted):
        pass  # the first process has the same, and decides what comes of it
