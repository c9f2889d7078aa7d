"""The points of a search, chosen by Optuna.

A study has a trial for each point. Workers that share a folder choose one after another, under a lock, and hold a lock
for every trial that they train. The trial of a dead worker is resumed with its values. So the storage needs no
heartbeat, and a file in the folder is enough.
"""

import logging
import math
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from widthwise.config_io import require
from widthwise.experiments.axes import point_name
from widthwise.experiments.plan import Point
from widthwise.experiments.sweep import STUDY_FILE, Search
from widthwise.mistakes import UserError

if TYPE_CHECKING:
    import optuna
    from filelock import BaseFileLock
    from optuna.trial import FrozenTrial

# User attributes in Optuna
IDENTITY = "identity"  # of the study: identity of the search
POINT = "point"  # of a trial: name, group and values of its point
REASON = "reason"  # of a trial: the reason why it failed
PointState = Literal["finished", "failed", "running", "waiting"]
STATES: dict[str, PointState] = {"COMPLETE": "finished", "FAIL": "failed"}
"""State of a trial in Optuna -> state of its point. Any other state is "running"; its worker may have died."""


@dataclass(frozen=True)
class PointStatus:
    """The state of one point of a sweep. reason: of a failure."""

    name: str
    group: str
    values: Mapping[str, Any]
    state: PointState
    reason: str | None = None


class Study:
    """The study of one search, for one worker."""

    def __init__(self, plan: Search, folder: Path):
        """Raises UserError if the folder has the study of another search."""
        self._optuna: Any = require("optuna", "sweep")
        self._optuna.logging.set_verbosity(logging.WARNING)
        self._sampler = plan.sampler
        self._space = plan.space
        self._folder = folder
        self._locks: dict[int, BaseFileLock] = {}
        """Trial that this worker holds -> its lock."""
        self._held: dict[str, list[int]] = {}
        """Name of a point that this worker trains -> its trials."""
        self._given_up: dict[int, str] = {}
        """Trial that this worker could not train, and does not retry -> the reason, which may be temporary."""
        folder.mkdir(parents=True, exist_ok=True)
        with self._locked():
            backends = self._optuna.storages.journal
            storage = self._optuna.storages.JournalStorage(backends.JournalFileBackend(str(folder / STUDY_FILE)))
            self._study = self._optuna.create_study(study_name=plan.title, storage=storage, load_if_exists=True)
            identity = self._space.identity()
            saved = self._study.user_attrs.get(IDENTITY)
            if saved is None and not self._trials():
                self._study.set_user_attr(IDENTITY, identity)
            elif saved != identity:
                path = folder / STUDY_FILE
                raise UserError(f"{path}: is the study of another search; choose another folder with --out")

    def drawn(self) -> list[PointStatus]:
        """Return the points that all workers have chosen so far, in order. A point without a name is called "#" and the
        number of its trial."""
        points = list[PointStatus]()
        for trial in self._trials()[: self._space.n_trials]:
            point = {"name": f"#{trial.number}", "group": "", "values": {}, **trial.user_attrs.get(POINT, {})}
            state = STATES.get(trial.state.name, "running")
            reason = trial.user_attrs.get(REASON)
            if trial.number in self._given_up and state == "running":
                state = "failed"
                reason = self._given_up[trial.number]
            points.append(PointStatus(**point, state=state, reason=reason))
        return points

    @property
    def n_open(self) -> int:
        """Number of points that have neither finished nor failed, including those not chosen yet."""
        return self._space.n_trials - sum(point.state != "running" for point in self.drawn())

    def take(self) -> Point | None:
        """Claim a point for this worker: one whose worker has died, otherwise a new one. None if no point remains.

        An impossible point, or one whose name is too long, fails at once, and the next is claimed.
        """
        while True:
            with self._locked():
                number = self._next()
                if number is None:
                    return None
                group, values = self._space.draw(self._trial(number))
                try:
                    name = point_name(group, values)
                    self._trial(number).set_user_attr(POINT, {"name": name, "group": group, "values": values})
                    point = self._space.point(group, values)
                except UserError as error:
                    self._tell_failed(number, str(error))
                else:
                    self._held.setdefault(point.name, []).append(number)
                    return point

    def _next(self) -> int | None:
        """Lock a trial that no worker holds, and return its number."""
        from filelock import FileLock, Timeout

        trials = self._trials()
        numbers = [trial.number for trial in trials if not trial.state.is_finished()]
        if len(trials) < self._space.n_trials:
            numbers.append(len(trials))
        for number in numbers:
            path = self._folder / "trials" / f"{number}.lock"
            path.parent.mkdir(exist_ok=True)
            with suppress(Timeout):
                lock = FileLock(path)
                lock.acquire(timeout=0)
                self._locks[number] = lock
                if number == len(trials):
                    self._set_sampler(number)
                    self._study.ask()
                return number
        return None

    def _trial(self, number: int) -> "optuna.Trial":
        self._set_sampler(number)
        return self._optuna.Trial(self._study, self._trials()[number]._trial_id)

    def _set_sampler(self, number: int) -> None:
        """Set the sampler of one trial. It depends only on the number of the trial and on finished trials, so that an
        interrupted search continues unchanged."""
        samplers = self._optuna.samplers
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
            if self._sampler == "random":
                self._study.sampler = samplers.RandomSampler(seed=number)
            else:  # constant_liar: points of other workers count as bad, so that this worker avoids them
                self._study.sampler = samplers.TPESampler(seed=number, constant_liar=True)

    def finish(self, name: str, loss: float) -> None:
        """Report the mean loss of a point that this worker has trained. NaN becomes infinite."""
        for number in self._held.pop(name, []):
            self._tell(number, values=math.inf if math.isnan(loss) else loss)

    def fail(self, name: str, reason: str, is_final: bool) -> None:
        """Report that this worker could not train a point. is_final: it diverged; otherwise another start retries
        it."""
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

    def _locked(self) -> "BaseFileLock":
        """Return the lock that lets one worker at a time choose."""
        from filelock import FileLock

        return FileLock(self._folder / "study.lock")

    def _trials(self) -> "list[FrozenTrial]":
        try:
            return self._study.get_trials(deepcopy=False)
        except KeyError:
            raise UserError(f"{self._folder / STUDY_FILE}: its study no longer exists") from None
