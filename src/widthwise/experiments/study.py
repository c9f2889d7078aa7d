"""The points of a search, chosen by Optuna, and its results.

A study has a trial for each point. Workers that share a folder choose one after another, under a lock, and hold a lock
for every trial that they train. The trial of a dead worker is resumed with its values. So the storage needs no
heartbeat, and a file in the folder is enough.
"""

import logging
import math
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from widthwise.config_io import require
from widthwise.experiments.jobs import Run
from widthwise.experiments.matching import Point
from widthwise.experiments.outcome import load_result
from widthwise.experiments.results import PointState, PointStatus, SweepResults
from widthwise.experiments.sweep import STUDY_FILE, Search
from widthwise.experiments.sweep_section import point_name
from widthwise.mistakes import UserError
from widthwise.records.record import finite

if TYPE_CHECKING:
    import optuna
    from filelock import BaseFileLock
    from optuna.trial import FrozenTrial

# User attributes in Optuna
IDENTITY = "identity"  # study: `identity` of its search
POINT = "point"  # trial: name, group and values of its point
REASON = "reason"  # trial: why it failed

STATES: dict[str, PointState] = {"COMPLETE": "finished", "FAIL": "failed"}
"""State of a trial in Optuna -> state of its point. Any other state is "running"; its worker may have died."""


class Study:
    """The study of one search, for one worker."""

    def __init__(self, plan: Search, folder: Path):
        """Raises UserError if the folder has the study of another search."""
        self._optuna: Any = require("optuna", "sweep")
        self._filelock: Any = require("filelock", "sweep")
        self._optuna.logging.set_verbosity(logging.WARNING)
        self._sampler = plan.sampler
        self._space = plan.space
        self._folder = folder
        self._locks: dict[int, BaseFileLock] = {}
        """Trial that this worker holds -> its lock."""
        self._held: dict[str, list[int]] = {}
        """Point that this worker trains -> trials that chose it."""
        self._given_up: dict[int, str] = {}
        """Trial that this worker could not train, and does not retry -> the reason, which may be temporary."""
        (folder / "trials").mkdir(parents=True, exist_ok=True)
        self._study_lock = self._filelock.FileLock(folder / "study.lock")
        """Lets one worker at a time choose."""
        with self._study_lock:
            path = folder / STUDY_FILE
            storages = self._optuna.storages
            storage = storages.JournalStorage(storages.journal.JournalFileBackend(str(path)))
            names = self._optuna.get_all_study_names(storage) or [plan.title]  # the recipe may have been renamed
            self._study = self._optuna.create_study(study_name=names[0], storage=storage, load_if_exists=True)
            identity = self._space.identity()
            saved = self._study.user_attrs.get(IDENTITY)
            if saved is None and not self._trials():
                self._study.set_user_attr(IDENTITY, identity)
            elif saved != identity:
                raise UserError(f"{path}: is the study of another search; choose another folder with --out")

    def drawn(self) -> list[PointStatus]:
        """Return the points that all workers have chosen, in order.

        The name of a point is "#" and the number of its trial if it is not set yet, or too long.
        """
        points = list[PointStatus]()
        for trial in self._trials()[: self._space.n_trials]:  # may be fewer than before
            point = {"name": f"#{trial.number}", "group": "", "values": {}, **trial.user_attrs.get(POINT, {})}
            state = STATES.get(trial.state.name, "running")
            reason = trial.user_attrs.get(REASON)
            if trial.number in self._given_up and state == "running":
                state = "failed"
                reason = self._given_up[trial.number]
            points.append(PointStatus(**point, state=state, reason=reason))
        return points

    def claim(self) -> Point | None:
        """Claim a point for this worker: a point whose worker has died, otherwise a new point; None if none is free.

        An impossible point, or a point whose name is too long, fails at once, and the next point is claimed.
        """
        while True:
            with self._study_lock:
                number = self._lock_next()
                if number is None:
                    return None
                trial = self._trial(number)
                group, values = self._space.draw(trial)
                try:
                    name = point_name(group, values)
                    trial.set_user_attr(POINT, {"name": name, "group": group, "values": values})
                    point = self._space.point(group, values)
                except UserError as error:
                    self._tell_failed(number, str(error))
                else:
                    self._held.setdefault(point.name, []).append(number)
                    return point

    def _lock_next(self) -> int | None:
        """Lock a free trial, old or new; return its number or None."""
        trials = self._trials()
        numbers = [trial.number for trial in trials if not trial.state.is_finished()]
        if len(trials) < self._space.n_trials:
            numbers.append(len(trials))
        for number in numbers:
            lock = self._filelock.FileLock(self._folder / "trials" / f"{number}.lock")
            with suppress(self._filelock.Timeout):
                lock.acquire(timeout=0)
            if lock.is_locked:
                self._locks[number] = lock
                if number == len(trials):
                    self._study.ask()
                return number
        return None

    def _trial(self, number: int) -> "optuna.Trial":
        """Return a trial, and set the sampler for it.

        Its choice depends only on the number of the trial and the other trials, so that an interrupted search continues
        unchanged.
        """
        samplers = self._optuna.samplers
        if self._sampler == "random":
            self._study.sampler = samplers.RandomSampler(seed=number)
        else:  # constant_liar: points of other workers count as bad, so that this worker avoids them
            self._study.sampler = samplers.TPESampler(seed=number, constant_liar=True)
        return self._optuna.Trial(self._study, self._trials()[number]._trial_id)

    def finish(self, name: str, loss: float) -> None:
        """Report the mean loss of a point that this worker has trained. NaN becomes infinite."""
        for number in self._held.pop(name, []):
            self._tell(number, values=math.inf if math.isnan(loss) else loss)

    def fail(self, name: str, reason: str, is_final: bool) -> None:
        """Record that this worker could not train a point.

        is_final: True if it diverged; otherwise a later start retries it.
        """
        for number in self._held.pop(name, []):
            if is_final:
                self._tell_failed(number, reason)
            else:
                self._given_up[number] = reason

    def _tell_failed(self, number: int, reason: str) -> None:
        self._trial(number).set_user_attr(REASON, reason)
        self._tell(number, state=self._optuna.trial.TrialState.FAIL)

    def _tell(self, number: int, **result: Any) -> None:
        """Report the end of a trial, and release it."""
        self._study.tell(number, skip_if_finished=True, **result)
        self._locks.pop(number).release()

    def close(self) -> None:
        """Release all locks, so that other workers may claim the unfinished points."""
        for lock in self._locks.values():
            lock.release()

    def _trials(self) -> "list[FrozenTrial]":
        try:
            return self._study.get_trials(deepcopy=False)
        except KeyError:
            raise UserError(f"{self._folder / STUDY_FILE}: its study no longer exists") from None


class SearchResults(SweepResults[Search]):
    """The results of a search. Its study draws points for free workers, and records the loss of each point."""

    averages_groups = False  # the sampler has selected the points

    def begin(self) -> list[Run]:
        self._study = Study(self.plan, self.folder)
        return super().begin()

    def close(self) -> None:
        self._study.close()

    @property
    def n_open(self) -> int:
        return self.plan.space.n_trials - sum(point.state != "running" for point in self._drawn())

    def draw(self) -> list[Run]:
        point = self._study.claim()
        if point is None:
            return []
        if point.adjustment is not None:
            self.observer.message(f"{point.name}: {point.adjustment}")
        return [self._run(point, seed) for seed in self.plan.seeds]

    def finished(self, run: Run, is_last: bool) -> None:
        if is_last:
            losses = [finite(load_result(folder).val_loss) for folder in self._runs_of(run.point)]
            self._study.finish(run.point, sum(losses) / len(losses))
        super().finished(run, is_last)

    def _fail(self, point: str, reason: str, is_final: bool) -> None:
        super()._fail(point, reason, is_final)
        self._study.fail(point, self.failures[point], is_final)

    def _drawn(self) -> list[PointStatus]:
        return self._study.drawn()
