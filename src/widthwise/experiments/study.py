"""The points of a search, chosen by Optuna.

A study holds a trial for each. Workers in one folder, on one or several machines, choose one after another, under a
lock, and hold a lock for every trial that they train: a trial whose holder died is taken over with its values. So the
storage needs no heartbeat, and a file in the folder is enough.
"""

import logging
import math
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from widthwise.config_io import UserError, require
from widthwise.experiments.axes import point_name
from widthwise.experiments.plan import Point
from widthwise.experiments.sweep import STUDY_FILE, Search

if TYPE_CHECKING:
    import optuna
    from filelock import BaseFileLock
    from optuna.trial import FrozenTrial

IDENTITY = "identity"
"""User attribute of the study: identity of the search."""
POINT, REASON = "point", "reason"
"""User attributes of a trial: name, group and values of its point; why it failed."""


STATES = {"COMPLETE": "finished", "FAIL": "failed"}
"""State of a trial in Optuna -> state of its point; running in any other, as its worker may have died."""


class Study:
    """The study of one search, for one worker."""

    def __init__(self, plan: Search, folder: Path):
        """Raises UserError if the study in the folder is another search's."""
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
        """Trial that this worker could not train, and so keeps from itself -> its reason, which may be mended."""
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

    def drawn(self) -> list[dict[str, Any]]:
        """Return name, group, values, state and reason of the points chosen so far by all workers, in order. The name
        of one that has none, yet or at all, is "#" and the number of its trial."""
        found = []
        for trial in self._trials()[: self._space.n_trials]:
            point = {"name": f"#{trial.number}", "group": "", "values": {}, **trial.user_attrs.get(POINT, {})}
            state, reason = STATES.get(trial.state.name, "running"), trial.user_attrs.get(REASON)
            if trial.number in self._given_up and state == "running":
                state, reason = "failed", self._given_up[trial.number]
            found.append({**point, "state": state, "reason": reason})
        return found

    @property
    def n_open(self) -> int:
        """Number of points that have neither finished nor failed, including those not chosen yet."""
        return self._space.n_trials - sum(each["state"] != "running" for each in self.drawn())

    def take(self) -> Point | None:
        """Claim a point for this worker: one whose worker has died, or else a new one; None if there is none.

        A point that is impossible, or whose name is too long, fails at once, and the next one is taken.
        """
        while True:
            with self._locked():
                if (number := self._next()) is None:
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
        """Set the sampler of one trial. It depends only on the trial's number and on what has finished before, so that
        an interrupted search continues as it would have."""
        samplers = self._optuna.samplers
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
            if self._sampler == "random":
                self._study.sampler = samplers.RandomSampler(seed=number)
            else:  # constant_liar: points in progress elsewhere count as bad, so that workers avoid them
                self._study.sampler = samplers.TPESampler(seed=number, constant_liar=True)

    def finish(self, name: str, loss: float) -> None:
        """Tell the mean loss of a point that this worker has trained. NaN becomes infinite."""
        for number in self._held.pop(name, []):
            self._tell(number, values=math.inf if math.isnan(loss) else loss)

    def fail(self, name: str, reason: str, is_final: bool) -> None:
        """Tell that this worker could not train a point. is_final: it diverged; else another start tries it again."""
        for number in self._held.pop(name, []):
            if is_final:
                self._tell_failed(number, reason)
            else:
                self._given_up[number] = reason

    def _tell_failed(self, number: int, reason: str) -> None:
        self._trial(number).set_user_attr(REASON, reason)
        self._tell(number, state=self._optuna.trial.TrialState.FAIL)

    def _tell(self, number: int, **result: Any) -> None:
        """Tell the end of a trial, and give it up."""
        self._study.tell(number, skip_if_finished=True, **result)
        self._locks.pop(number).release()

    def close(self) -> None:
        """Give up all locks, so that others may take the points that have not finished."""
        for lock in self._locks.values():
            lock.release()

    def _locked(self) -> "BaseFileLock":
        """Return the lock under which one worker at a time chooses."""
        from filelock import FileLock

        return FileLock(self._folder / "study.lock")

    def _trials(self) -> "list[FrozenTrial]":
        try:
            return self._study.get_trials(deepcopy=False)
        except KeyError:
            raise UserError(f"{self._folder / STUDY_FILE}: its study no longer exists") from None
