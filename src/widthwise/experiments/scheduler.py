"""The scheduler: the order of the runs of an experiment on all machines that share its folder, and the time left.

A worker claims a run by the lock in its folder, and skips runs that other processes hold. The lock of a dead process is
free: the next worker that finds it resumes the run from its last checkpoint.
"""

import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import wait
from typing import Any

from widthwise.experiments.jobs import JobProcess, Jobs, ProcessGroup, Run
from widthwise.mistakes import UserError, counted
from widthwise.run_dir import RunDir, RunInUse
from widthwise.training.launch import Interrupted, watch_signals
from widthwise.training.observer import ForwardingObserver, Observer

POLL_SECONDS = 1.0
"""Interval at which an idle worker checks the runs that other workers hold."""
SECONDS_BETWEEN_SIGNALS = 1.0


class HeldElsewhere(UserError):
    """Other workers hold all remaining runs. This is no mistake, but this worker has nothing to begin."""


class RunPolicy:
    """Decisions about the runs of an experiment. By default all are trained, and a failure stops the experiment."""

    @property
    def n_open(self) -> int:
        """Number of points of a search, drawn or not, that have neither finished nor failed."""
        return 0

    def draw(self) -> list[Run]:
        """Return the runs of a new point; empty if this worker cannot draw one."""
        return []

    def may_begin(self, run: Run) -> bool:
        """Return False for a run whose point has failed; all runs of the point are then dropped."""
        return True

    def finished(self, run: Run, is_last: bool) -> None:
        """Record a finished run. is_last: True if no run of its point remains."""

    def failed(self, run: Run, error: BaseException) -> None:
        """Record a failed run; its point is then dropped. Raises the error if it stops the experiment."""
        raise error


class _RunObserver(ForwardingObserver):
    """The observer of one run, which adds its steps to the rate."""

    def __init__(self, schedule: "Schedule", run: Run, label: str, observer: Observer):
        super().__init__(observer)
        self._schedule = schedule
        self._run = run
        self._label = label

    def starting(self, name: str, step: int, n_steps: int) -> None:
        self._step = step
        self._since = time.monotonic()
        super().starting(f"{self._label}, {name}", step, n_steps)

    def record(self, record: dict[str, Any]) -> None:
        if record["event"] == "train":
            now = time.monotonic()
            n_steps = record["step"] - self._step
            self.remaining(self._schedule.seconds_left(self._run, record["step"], n_steps, now - self._since))
            self._step = record["step"]
            self._since = now
        super().record(record)


class Schedule:
    """The remaining runs of an experiment, for the jobs of one worker, and the time left for all of them.

    Time is estimated at the mean rate of the steps of this worker. Every step of a model that grows counts as the mean
    of its steps.
    """

    def __init__(self, runs: Iterable[Run], observer: Observer, policy: RunPolicy, undrawn_flops: Sequence[float] = ()):
        """runs: in the order of training. undrawn_flops: training FLOPs of the runs that are not drawn yet."""
        self.observer = observer
        self._policy = policy
        self._remaining = {run.name: run for run in runs}
        self._at_work: set[str] = set()
        self._held_elsewhere: list[str] = []
        self._n_announced = 0
        self._flops_left = {name: run.recipe.training_flops for name, run in self._remaining.items()}
        """Run -> its remaining FLOPs, finished or not, in the order of training."""
        self._undrawn_flops = list(undrawn_flops)
        self._n_runs = len(self._flops_left) + len(undrawn_flops)
        self._idle_flops = 0.0
        """FLOPs of runs that no worker has begun, and half of those that other workers have claimed."""
        self._flops_done = 0.0
        self._seconds = 0.0
        """Time of the steps of this worker, summed over runs."""

    @property
    def n_held_elsewhere(self) -> int:
        """Number of runs that other workers held at the last check."""
        return len(self._held_elsewhere) + self._policy.n_open

    @property
    def is_over(self) -> bool:
        """True if no run remains, in any worker."""
        return not self._remaining and self._policy.n_open == 0

    def next(self) -> Run | None:
        """Claim the next run for a job of this worker; None if other workers hold all remaining runs."""
        while (run := self._claim()) is None:
            drawn = self._policy.draw()
            if not drawn:
                return None
            for new_run in drawn:
                self._remaining[new_run.name] = new_run
                self._flops_left[new_run.name] = new_run.recipe.training_flops
            self._undrawn_flops = self._undrawn_flops[len(drawn) :]
        return run

    def _claim(self) -> Run | None:
        """Claim a run that has been drawn; None if other workers hold all of them."""
        self._held_elsewhere = []
        for name, run in list(self._remaining.items()):
            if name in self._at_work or name not in self._remaining:
                continue
            if RunDir(run.path).is_in_use:
                self._held_elsewhere.append(name)
            elif self._policy.may_begin(run):
                self._at_work.add(name)
                return run
            else:
                self._drop(run.point)
        return None

    def observer_of(self, run: Run, observer: Observer) -> Observer:
        """Return the observer of a run that begins. observer: of its job."""
        idle = [name for name in self._remaining if name not in {*self._at_work, *self._held_elsewhere}]
        waiting = [name for name in idle if not RunDir(self._remaining[name].path).has_result]
        self._idle_flops = sum(self._flops_left[name] for name in waiting)
        self._idle_flops += sum(self._flops_left[name] for name in self._held_elsewhere) / 2
        number = list(self._flops_left).index(run.name) + 1
        return _RunObserver(self, run, f"run {number} of {self._n_runs}", observer)

    def seconds_left(self, run: Run, step: int, n_steps: int, seconds: float) -> float:
        """Return the time until all runs end, if as many are trained at a time as now.

        The last n_steps of this run, up to this step, took the given seconds, which update the rate.
        """
        recipe = run.recipe
        flops_per_step = recipe.training_flops / recipe.train.steps
        self._flops_done += n_steps * flops_per_step
        self._flops_left[run.name] = (recipe.train.steps - step) * flops_per_step
        self._seconds += seconds
        at_work = [self._flops_left[name] for name in self._at_work]
        n_flops = sum(at_work) + self._idle_flops + sum(self._undrawn_flops)
        n_at_once = len(at_work) + len(self._held_elsewhere)
        return max(*at_work, n_flops / n_at_once) * self._seconds / self._flops_done

    def announce_wait(self) -> None:
        """Report that this worker waits for runs of other workers, once for each number of runs."""
        n = self.n_held_elsewhere
        if n not in (0, self._n_announced):
            self.observer.message(f"waiting for {counted(n, 'run')} of other workers, or to take over")
            self._n_announced = n

    def ended(self, run: Run, error: BaseException | None) -> None:
        """Record the end of a run. Raises the error if it stops the experiment.

        A worker that loses the race for a lock retries the run later.
        """
        self._at_work.discard(run.name)
        if isinstance(error, RunInUse):
            return
        if error is not None:
            self._policy.failed(run, error)
            self._drop(run.point)
        elif self._remaining.pop(run.name, None) is not None:
            is_last = all(remaining.point != run.point for remaining in self._remaining.values())
            self._policy.finished(run, is_last)

    def _drop(self, point: str) -> None:
        """Remove the runs of a point."""
        self._remaining = {name: run for name, run in self._remaining.items() if run.point != point}


def train_all(schedule: Schedule, group: ProcessGroup, jobs: Jobs, experiment: str, waits: bool = True) -> None:
    """Train the runs of a schedule, jobs.n at a time; with one job, in this process.

    waits: wait for the runs that other workers hold, to resume them if those workers die; otherwise HeldElsewhere is
    raised if only these remain. experiment: its kind, for messages. Ctrl-C and SIGTERM stop each run after its current
    step, with a checkpoint, and raise Interrupted. The first error that stops the experiment stops the other runs in
    the same way, and is raised.
    """
    try:
        (_one_at_a_time if jobs.n == 1 else _several_at_a_time)(schedule, group, jobs, waits)
    except Interrupted as stopped:
        raise Interrupted(f"{stopped}; the same command resumes the {experiment}", stopped.signal_number) from None
    if not schedule.is_over:
        n = schedule.n_held_elsewhere
        raise HeldElsewhere(
            f"other workers hold {counted(n, 'run')} of the {experiment}; the last one writes the results"
        )


def _one_at_a_time(schedule: Schedule, group: ProcessGroup, jobs: Jobs, waits: bool) -> None:
    with jobs.threads():
        while True:
            run = schedule.next()
            if run is None:
                if schedule.is_over or not waits:
                    return
                schedule.announce_wait()
                group.wait(POLL_SECONDS)
                continue
            try:
                group.train(run, schedule.observer_of(run, schedule.observer))
            except Interrupted:
                raise
            except Exception as error:
                schedule.ended(run, error)
            else:
                schedule.ended(run, None)


def _several_at_a_time(schedule: Schedule, group: ProcessGroup, jobs: Jobs, waits: bool) -> None:
    failures = list[Exception]()
    interruptions = list[Interrupted]()
    with watch_signals(schedule.observer.message) as watch, ExitStack() as ending:
        processes = [JobProcess(index, jobs, schedule.observer.for_parallel_run()) for index in range(jobs.n)]
        for process in processes:
            ending.callback(process.end)
        at_work: dict[JobProcess, Run] = {}
        next_claim = 0.0  # time of the next search for a run, which reads all locks
        while True:
            stop = signal.SIGTERM if failures or interruptions else watch.received
            if stop is not None:
                for process in at_work:
                    process.signal(stop)
            elif time.monotonic() >= next_claim:
                for process in processes:
                    if process in at_work:
                        continue
                    if (run := schedule.next()) is None:
                        next_claim = time.monotonic() + POLL_SECONDS
                        break
                    at_work[process] = run
                    task = partial(run.train, data_cache=group.data_cache)
                    process.begin(task, schedule.observer_of(run, process.observer))
            if not at_work:
                if stop is not None or schedule.is_over or not waits:
                    break
                schedule.announce_wait()
                time.sleep(0.2)
                continue
            by_connection: dict[Any, JobProcess] = {process.connection: process for process in at_work}
            for connection in wait([*by_connection], SECONDS_BETWEEN_SIGNALS if stop else 0.2):
                process = by_connection[connection]
                is_end, error = process.receive()
                if not is_end:
                    continue
                run = at_work.pop(process)
                next_claim = 0.0
                if isinstance(error, Interrupted):
                    interruptions.append(error)
                    continue
                try:
                    schedule.ended(run, error)
                except Exception as failure:
                    failures.append(failure)
        if failures:
            raise failures[0]
        if len(interruptions) > 1:
            message = f"{len(interruptions)} runs stopped, each with a checkpoint"
            raise Interrupted(message, interruptions[0].signal_number)
        if interruptions:
            raise interruptions[0]
        if watch.received is not None:
            raise Interrupted("stopped before the next run", watch.received)
