"""The scheduler: which run of an experiment is trained next, here or on another machine that sees the folder, and the
time left.

A worker claims a run by the lock that every run folder has. A run that another process holds is left to it; when its
holder dies the lock is free, and whoever sees it resumes the run from its last checkpoint.
"""

import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from widthwise.config_io import UserError
from widthwise.experiments.jobs import JobProcess, Jobs, ProcessGroup, Run
from widthwise.recipe.recipe import Recipe
from widthwise.run_dir import RunDir, RunInUse
from widthwise.sizes import counted
from widthwise.training.launch import Interrupted, interruption_adds, watch_signals
from widthwise.training.observer import ForwardingObserver, Observer


@dataclass(frozen=True)
class RunWork:
    """Remaining steps of a run, and the FLOPs of one."""

    flops_per_step: float
    n_steps: int

    @classmethod
    def of(cls, recipe: Recipe, start: int = 0) -> "RunWork":
        """Return the work of a run from `start` steps on. If its model grows, every step counts as the mean."""
        return cls(recipe.training_flops / recipe.train.steps, recipe.train.steps - start)


class Eta:
    """The place of each run among all, and the time left for all.

    A step is expected to take the time of earlier steps of the same FLOPs, or else that of its FLOPs at the mean rate.
    """

    def __init__(self, works: Mapping[str, RunWork], further: Sequence[RunWork] = ()):
        """works: run -> its work, in order, done or not. further: the work of runs that are not known yet."""
        self._works, self._further = dict(works), list(further)
        self._places = {run: place for place, run in enumerate(works, start=1)}
        self._n_runs = len(works) + len(further)
        self._present: dict[str, _RunObserver] = {}
        self._waiting: list[str] = []
        self._elsewhere: list[str] = []
        self.measured: dict[float, tuple[int, float]] = {}
        """FLOPs of a step -> number of such steps made, and their seconds."""

    def add(self, run: str, work: RunWork) -> None:
        """Add a run, in place of a further one."""
        self._further = self._further[1:]
        self._works[run] = work
        self._places.setdefault(run, len(self._places) + 1)

    @contextmanager
    def at_work_on(
        self, run: str, observer: Observer, waiting: Iterable[str], elsewhere: Iterable[str]
    ) -> Iterator[Observer]:
        """Yield the observer of a run that is trained in the block; several runs may be at work at the same time.

        observer: shows this run. waiting: the runs that no worker has begun. elsewhere: those that other workers have
        claimed.
        """
        self._waiting, self._elsewhere = list(waiting), list(elsewhere)
        place = f"run {self._places[run]} of {self._n_runs}"
        present = self._present[run] = _RunObserver(self, place, self._works[run], observer)
        try:
            yield present
        finally:
            present.measure()
            del self._present[run]

    def seconds_left(self) -> float:
        """Return the time until the end of all runs, if as many run at a time as now. Needs one finished step."""
        for present in self._present.values():
            present.measure()
        n_flops = sum(flops * steps for flops, (steps, _) in self.measured.items())
        rate = n_flops / max(sum(seconds for _, seconds in self.measured.values()), 1e-9)

        def seconds_of(work: RunWork, n_steps: int) -> float:
            steps, seconds = self.measured.get(work.flops_per_step, (1, work.flops_per_step / rate))
            return n_steps * seconds / steps

        def seconds_of_all(runs: Iterable[str]) -> float:
            return sum(seconds_of(self._works[run], self._works[run].n_steps) for run in runs)

        own = [seconds_of(present.work, present.n_steps_left) for present in self._present.values()]
        half_done = seconds_of_all(self._elsewhere) / 2
        further = sum(seconds_of(work, work.n_steps) for work in self._further)
        together = sum(own) + seconds_of_all(self._waiting) + further + half_done
        return max(*own, together / (len(own) + len(self._elsewhere)))


class _RunObserver(ForwardingObserver):
    """The observer of one run at work."""

    def __init__(self, eta: Eta, place: str, work: RunWork, observer: Observer):
        super().__init__(observer)
        self._eta, self._place, self.work = eta, place, work
        self.n_steps_left = work.n_steps
        self._step, self._n_new, self._since, self._has_steps = 0, 0, 0.0, False
        """The present step, those made since the run was last measured, when that was, and True after the first."""

    def measure(self) -> None:
        """Add the steps since the last measurement, and their time, to those of all runs."""
        self._has_steps |= self._n_new > 0
        if self._has_steps:
            now, (n_steps, seconds) = time.monotonic(), self._eta.measured.get(self.work.flops_per_step, (0, 0.0))
            self._eta.measured[self.work.flops_per_step] = n_steps + self._n_new, seconds + now - self._since
            self._n_new, self._since = 0, now

    def starting(self, name: str, step: int, n_steps: int) -> None:
        self.measure()
        self._step, self._n_steps, self._since = step, n_steps, time.monotonic()
        super().starting(f"{self._place}, {name}", step, n_steps)

    def step_done(self, step: int) -> None:
        self._reached(step)
        super().step_done(step)

    def record(self, record: dict[str, Any]) -> None:
        if record["event"] == "train":
            self._reached(record["step"])  # its step_done comes after
            self.remaining(self._eta.seconds_left())
        super().record(record)

    def _reached(self, step: int) -> None:
        self._n_new += step - self._step
        self._step, self.n_steps_left = step, self._n_steps - step


POLL_SECONDS = 1.0
"""Time between two looks of an idle worker at the runs that others hold."""
SECONDS_BETWEEN_SIGNALS = 1.0


class HeldElsewhere(UserError):
    """Other workers hold all runs that are left: no mistake, but nothing is left to begin here."""


class Schedule:
    """The runs of an experiment that are left, for the jobs of one worker."""

    def __init__(self, runs: Iterable[Run], observer: Observer, further: Sequence[RunWork] = ()):
        """runs: in the order of training. further: the work of runs that are not known yet."""
        self.observer = observer
        self.left = {run.name: run for run in runs}
        self._at_work: set[str] = set()
        self._held_elsewhere: list[str] = []
        self._n_announced = 0
        works = {name: RunWork.of(run.recipe, run.grown_at or 0) for name, run in self.left.items()}
        self.eta = Eta(works, further)

    @property
    def n_held_elsewhere(self) -> int:
        """Number of runs that other workers held when this one last looked."""
        return len(self._held_elsewhere)

    @property
    def is_over(self) -> bool:
        """True if no run is left, here or elsewhere."""
        return not self.left

    def add(self, runs: Iterable[Run]) -> None:
        """Append runs."""
        for run in runs:
            self.left[run.name] = run
            self.eta.add(run.name, RunWork.of(run.recipe))

    def drop(self, point: str) -> None:
        """Remove the runs of a point."""
        self.left = {name: run for name, run in self.left.items() if run.point != point}

    def next(self) -> Run | None:
        """Claim the next run for a job of this worker; None if all that are left are held."""
        self._held_elsewhere = []
        for name, run in list(self.left.items()):
            if name in self._at_work or name not in self.left:
                continue
            if RunDir(run.path).is_in_use:
                self._held_elsewhere.append(name)
            elif self.may_begin(run):
                self._at_work.add(name)
                return run
        return None

    def may_begin(self, run: Run) -> bool:
        """Return True if a run that is not held can be trained."""
        return True

    @contextmanager
    def showing(self, run: Run, observer: Observer) -> Iterator[Observer]:
        """Yield the observer of a run that is trained in the block. observer: of the job that trains it."""
        idle = [name for name in self.left if name not in {*self._at_work, *self._held_elsewhere}]
        waiting = [name for name in idle if not RunDir(self.left[name].path).has_result]
        with self.eta.at_work_on(run.name, observer, waiting, self._held_elsewhere) as shown:
            yield shown

    def announce_wait(self) -> None:
        """Say that runs of other workers are waited for, once for each number of runs."""
        if (n := self.n_held_elsewhere) not in (0, self._n_announced):
            self.observer.message(f"waiting for {counted(n, 'run')} of other workers, or to take over")
            self._n_announced = n

    def ended(self, run: Run, error: BaseException | None) -> None:
        """Note the end of a run. Raises what stops the experiment.

        A worker that loses the race for a lock comes back to the run later.
        """
        self._at_work.discard(run.name)
        if isinstance(error, RunInUse):
            return
        if error is not None:
            self.failed(run, error)
        elif self.left.pop(run.name, None) is not None:
            self.finished(run)

    def finished(self, run: Run) -> None:
        """Handle the end of a run."""

    def failed(self, run: Run, error: BaseException) -> None:
        """Handle a run that cannot be trained. Raises what stops the others."""
        raise error


def train_all(schedule: Schedule, group: ProcessGroup, jobs: Jobs, experiment: str, waits: bool = True) -> None:
    """Train the runs of a schedule, jobs.n at a time; a single one at a time in this process.

    waits: wait for the runs that other workers hold, to take them over if those die; else HeldElsewhere is raised if
    nothing is left to begin. experiment: its kind, for messages. Ctrl-C and SIGTERM stop all runs, each after its
    current step, with a checkpoint; then Interrupted is raised. The first error that stops the experiment stops the
    other runs in the same way, and is raised.
    """
    with interruption_adds(f"the same command resumes the {experiment}"):
        (_one_at_a_time if jobs.n == 1 else _several_at_a_time)(schedule, group, jobs, waits)
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
                with schedule.showing(run, schedule.observer) as observer:
                    group.train(run, observer)
            except Interrupted:
                raise
            except Exception as error:
                schedule.ended(run, error)
            else:
                schedule.ended(run, None)


def _several_at_a_time(schedule: Schedule, group: ProcessGroup, jobs: Jobs, waits: bool) -> None:
    errors = list[BaseException]()
    with watch_signals(schedule.observer.message) as watch, ExitStack() as ending:
        processes = [JobProcess(place, jobs, schedule.observer.beside()) for place in range(jobs.n)]
        for process in processes:
            ending.callback(process.end)
        at_work: dict[JobProcess, Run] = {}
        looks_at = 0.0  # the next time to look for a run, which reads the locks of all
        while True:
            stop = signal.SIGTERM if errors else watch.received
            if stop is not None:
                for process in at_work:
                    process.signal(stop)
            elif time.monotonic() >= looks_at:
                for process in processes:
                    if process in at_work:
                        continue
                    if (run := schedule.next()) is None:
                        looks_at = time.monotonic() + POLL_SECONDS
                        break
                    at_work[process] = run
                    process.begin(
                        partial(run.train, data_cache=group.data_cache), schedule.showing(run, process.observer)
                    )
            if not at_work:
                if stop is not None or schedule.is_over or not waits:
                    break
                schedule.announce_wait()
                time.sleep(0.2)
                continue
            for process in JobProcess.ready(at_work, SECONDS_BETWEEN_SIGNALS if stop else 0.2):
                is_end, error = process.receive()
                if not is_end:
                    continue
                run, looks_at = at_work.pop(process), 0.0
                try:
                    if isinstance(error, Interrupted):
                        raise error
                    schedule.ended(run, error)
                except Exception as stopping:
                    errors.append(stopping)
        if errors:
            raise _first_cause(errors)
        if watch.received is not None:
            raise Interrupted("stopped before the next run", watch.received)


def _first_cause(errors: Sequence[BaseException]) -> BaseException:
    """Return the error that stopped the others, or the signal if there was none."""
    stopped = [error for error in errors if isinstance(error, Interrupted)]
    if len(stopped) < len(errors):
        return next(error for error in errors if not isinstance(error, Interrupted))
    several = f"{len(stopped)} runs stopped, each with a checkpoint"
    return stopped[0] if len(stopped) == 1 else Interrupted(several, stopped[0].signal_number)
