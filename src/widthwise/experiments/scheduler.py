"""The scheduler: which run of an experiment is trained next, here or on another machine that sees the folder.

A worker claims a run by the lock that every run folder has. A run that another process holds is left to it; when its
holder dies the lock is free, and whoever sees it goes on with the run from its last checkpoint.
"""

import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from widthwise.config_io import UserError
from widthwise.experiments.eta import Eta, Work
from widthwise.experiments.jobs import JobProcess, Jobs
from widthwise.experiments.process_group import ProcessGroup, Run
from widthwise.run_dir import RunDir, RunInUse
from widthwise.training.launch import Interrupted, interruption_adds, watch_signals
from widthwise.training.observer import Observer

POLL_SECONDS = 1.0
"""How often a worker with nothing left to begin looks at the runs that others hold."""
SECONDS_BETWEEN_SIGNALS = 1.0


class HeldElsewhere(UserError):
    """Runs are left, and other workers hold them: no mistake, but nothing is left to begin here."""


class Schedule:
    """The runs of an experiment that are left, for the jobs of one worker."""

    def __init__(self, runs: Iterable[Run], observer: Observer, further: Sequence[Work] = ()):
        """runs: in the order of training. further: the work of runs that are not known yet."""
        self.observer = observer
        self.left = {run.name: run for run in runs}
        self._at_work: set[str] = set()
        self._held_elsewhere: list[str] = []
        works = {name: Work.of(run.recipe, run.grown_at or 0) for name, run in self.left.items()}
        self.eta = Eta(observer, works, further)

    @property
    def n_held_elsewhere(self) -> int:
        """Runs that other workers held when this one last looked."""
        return len(self._held_elsewhere)

    @property
    def is_over(self) -> bool:
        """Whether no run is left, here or elsewhere."""
        return not self.left

    def add(self, runs: Iterable[Run]) -> None:
        """Append runs that were not known."""
        for run in runs:
            self.left[run.name] = run
            self.eta.add(run.name, Work.of(run.recipe))

    def drop(self, point: str) -> None:
        """Leave out the runs of a point."""
        self.left = {name: run for name, run in self.left.items() if run.point != point}

    def next(self) -> Run | None:
        """Claim the next run for a job of this worker; None if there is none that nobody holds."""
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
        """Whether a run that nobody holds can be trained."""
        return True

    @contextmanager
    def showing(self, run: Run, observer: Observer) -> Iterator[Observer]:
        """An observer of a run that is trained in the block. observer: of the job that trains it."""
        idle = [name for name in self.left if name not in {*self._at_work, *self._held_elsewhere}]
        waiting = [name for name in idle if not RunDir(self.left[name].path).has_result]
        elsewhere = [[name] for name in self._held_elsewhere]
        with self.eta.at_work_on(run.name, waiting, elsewhere, observer) as shown:
            yield shown

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
        """Called after the end of each run."""

    def failed(self, run: Run, error: BaseException) -> None:
        """Called where a run cannot be trained. Raises what stops the others."""
        raise error


def train_all(schedule: Schedule, group: ProcessGroup, jobs: Jobs, experiment: str, waits: bool = True) -> None:
    """Train the runs of a schedule, jobs.n at a time; a single one at a time in this process.

    waits: for the runs that other workers hold, to take them over if those die; else HeldElsewhere is raised when there
    is nothing left to begin. experiment: its kind, for messages. Ctrl-C and SIGTERM stop all runs, each after the step
    at work, with a checkpoint; then Interrupted is raised. The first error that stops the experiment stops the other
    runs in the same way, and is raised.
    """
    with interruption_adds(f"the same command goes on with the {experiment}"):
        (_one_at_a_time if jobs.n == 1 else _several_at_a_time)(schedule, group, jobs, waits)
    if not schedule.is_over:
        n = schedule.n_held_elsewhere
        raise HeldElsewhere(f"{n} runs of the {experiment} are at work elsewhere; the last worker writes the results")


class _Patience:
    """Decides whether to wait, and says so once for each number of runs."""

    def __init__(self, schedule: Schedule, waits: bool):
        self._schedule, self._waits, self._told = schedule, waits, 0

    def goes_on(self) -> bool:
        """Whether there may be something to begin later."""
        if self._schedule.is_over or not self._waits:
            return False
        if (n := self._schedule.n_held_elsewhere) not in (0, self._told):
            self._schedule.observer.message(f"{n} runs are at work elsewhere; waiting for them, or to take them over")
            self._told = n
        return True


def _one_at_a_time(schedule: Schedule, group: ProcessGroup, jobs: Jobs, waits: bool) -> None:
    patience = _Patience(schedule, waits)
    with jobs.threads():
        while True:
            run = schedule.next()
            if run is None:
                if not patience.goes_on():
                    return
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
    patience, errors = _Patience(schedule, waits), list[BaseException]()
    with watch_signals(schedule.observer.message) as watch, ExitStack() as ending:
        processes = [JobProcess(place, jobs, schedule.observer.beside()) for place in range(jobs.n)]
        for process in processes:
            ending.callback(process.end)
        at_work: dict[JobProcess, Run] = {}
        looks_at = 0.0  # when to look for a next run again, as that reads the locks of all
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
                if stop is not None or not patience.goes_on():
                    break
                time.sleep(0.2)
                continue
            for process in JobProcess.ready(at_work, SECONDS_BETWEEN_SIGNALS if stop else 0.2):
                if (end := process.hear()) is None:
                    continue
                run, looks_at = at_work.pop(process), 0.0
                if isinstance(end.error, Interrupted):
                    errors.append(end.error)
                    continue
                try:
                    schedule.ended(run, end.error)
                except Exception as stopping:
                    errors.append(stopping)
        if errors:
            raise _first_cause(errors)
        if watch.received is not None:
            raise Interrupted("stopped before the next run", watch.received)


def _first_cause(errors: Sequence[BaseException]) -> BaseException:
    """The error that stopped the others, if that was no signal."""
    stopped = [error for error in errors if isinstance(error, Interrupted)]
    if len(stopped) < len(errors):
        return next(error for error in errors if not isinstance(error, Interrupted))
    if len(stopped) == 1:
        return stopped[0]
    return Interrupted(f"{len(stopped)} runs stopped, each with a checkpoint", stopped[0].signal_number)
