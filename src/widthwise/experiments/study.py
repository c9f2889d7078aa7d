"""The points of a search, chosen by Optuna.

A study holds a trial for each. Workers in one folder, on one or several machines, choose one after another, under a
lock, and hold a lock for every trial that they train: a trial whose holder died is taken over with its values. So the
storage needs no heartbeat, and a file in the folder is enough; Optuna's database is for those who look at it with
Optuna's tools.
"""

import logging
import math
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from widthwise.config_io import UserError, require
from widthwise.experiments.experiment import Experiment, Point
from widthwise.experiments.sweep import point_name
from widthwise.files import write_first

if TYPE_CHECKING:
    import optuna
    from filelock import BaseFileLock
    from optuna.trial import FrozenTrial
    from sqlalchemy import URL

T = TypeVar("T")

STUDY_FILE = "study.log"
OPENING_SECONDS = 5
"""Time to retry opening a database after a first failure."""
OUTAGE_SECONDS = 120
"""Longest time that a database may be unreachable while workers are running."""
IDENTITY = "identity"
"""User attribute of the study: identity of the search and of its folder."""
POINT, REASON = "point", "reason"
"""User attributes of a trial: name, group and values of its point; why it failed."""


STATES = {"COMPLETE": "finished", "FAIL": "failed"}
"""State of a trial in Optuna -> that of its point; running in any other, as its worker may have died."""


class StorageAway(UserError):
    """A database is unreachable or unusable, or has lost its study."""


class Study:
    """The study of one search, for one worker."""

    def __init__(self, experiment: Experiment, folder: Path, url: str | None = None, name: str | None = None):
        """url: of a database; default: a file in the folder. Raises UserError if the study is another search's."""
        optuna: Any = require("optuna", "sweep")
        optuna.logging.set_verbosity(logging.WARNING)
        assert experiment.space is not None
        self._space, self._folder, self.name = experiment.space, folder, name or experiment.title
        self._url = None if url is None else _read_url(url)
        self._locks: dict[int, BaseFileLock] = {}
        """Trial that this worker holds -> its lock."""
        self._held: dict[str, list[int]] = {}
        """Name of a point that this worker trains -> its trials."""
        self._given_up: dict[int, str] = {}
        """Trial that this worker could not train, and so keeps from itself -> its reason, which may be mended."""
        folder.mkdir(parents=True, exist_ok=True)
        mark = write_first(folder / "sweep_id", secrets.token_hex(16) + "\n").strip()
        with self._locked():
            self._study = self._retried(self._opened, OPENING_SECONDS)
            self._check_identity([self._space.identity(), mark])

    @property
    def storage(self) -> str:
        """Address for published files: no password, and of a file only its name."""
        if self._url is None or self._url.get_backend_name() != "sqlite":
            return self._shown
        return self._url.set(query={}, database=Path(self._url.database or "").name).render_as_string()

    @property
    def _shown(self) -> str:
        """Address without password and options (options may contain another password)."""
        return STUDY_FILE if self._url is None else self._url.set(query={}).render_as_string(hide_password=True)

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
                group, values = self._retried(lambda number=number: self._space.draw(self._trial(number)))
                try:
                    name = point_name(group, values)
                    self._note(number, POINT, {"name": name, "group": group, "values": values})
                    point = self._space.point(group, values)
                except StorageAway:
                    raise
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
                    self._study.sampler = self._space.sampler(number)
                    self._retried(self._study.ask)
                return number
        return None

    def _trial(self, number: int) -> "optuna.Trial":
        import optuna

        self._study.sampler = self._space.sampler(number)
        return optuna.Trial(self._study, self._trials()[number]._trial_id)

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
        from optuna.trial import TrialState

        self._note(number, REASON, reason)
        self._tell(number, state=TrialState.FAIL)

    def _tell(self, number: int, **told: Any) -> None:
        """Tell the end of a trial, and give it up."""
        self._retried(lambda: self._study.tell(number, skip_if_finished=True, **told))
        self._locks.pop(number).release()

    def _note(self, number: int, key: str, value: Any) -> None:
        self._retried(lambda: self._trial(number).set_user_attr(key, value))

    def __enter__(self) -> "Study":
        return self

    def __exit__(self, *error: object) -> None:
        """Give up all locks, so that others may take the points that have not finished."""
        for lock in self._locks.values():
            lock.release()

    def _locked(self) -> "BaseFileLock":
        """Return the lock under which one worker at a time chooses."""
        from filelock import FileLock

        return FileLock(self._folder / "study.lock")

    def _trials(self) -> "list[FrozenTrial]":
        try:
            return self._retried(lambda: self._study.get_trials(deepcopy=False))
        except KeyError:
            raise StorageAway(f"study {self.name} in {self._shown}: no longer exists") from None

    def _check_identity(self, identity: list[str]) -> None:
        found = self._study.user_attrs.get(IDENTITY)
        if found is None and self._trials():
            raise UserError(
                f"study {self.name} in {self._shown}: was not made by widthwise; choose another with --study"
            )
        if found is None:
            self._retried(lambda: self._study.set_user_attr(IDENTITY, identity))
            return
        advice = (
            "is one of another sweep; name another study with --study",
            f"its workers use another folder than {self._folder}; all need one, on a disk they share; say it with "
            "--out, or begin another study with --study",
        )
        for own, other, what in zip(identity, found, advice):
            if own != other:
                raise UserError(f"study {self.name} in {self._shown}: {what}")

    def _opened(self) -> "optuna.Study":
        import optuna
        from optuna.storages import JournalStorage, RDBStorage
        from optuna.storages.journal import JournalFileBackend

        if self._url is None:
            storage = JournalStorage(JournalFileBackend(str(self._folder / STUDY_FILE)))
        else:
            # Braces would be taken for the template that Optuna allows.
            text = self._url.render_as_string(hide_password=False).replace("{", "{{").replace("}", "}}")
            try:
                storage = RDBStorage(text, engine_kwargs={"pool_pre_ping": True})
            except ImportError as error:
                raise UserError(f"--storage: {self._shown}: {error.__cause__ or error}; install its driver") from None
            except RuntimeError as error:  # tables of another version of Optuna
                raise UserError(f"--storage: {self._shown}: {error}") from None
        return optuna.create_study(study_name=self.name, storage=storage, load_if_exists=True)

    def _retried(self, act: Callable[[], T], seconds: float = OUTAGE_SECONDS) -> T:
        """Return the result of `act`, retried while the database is unreachable. Raises StorageAway if it stays so."""
        from optuna.exceptions import StorageInternalError
        from sqlalchemy.exc import SQLAlchemyError

        deadline: float | None = None
        while True:
            try:
                return act()
            except (StorageInternalError, SQLAlchemyError) as error:
                # From the first failure: on a busy machine one try may take longer than that.
                deadline = time.monotonic() + seconds if deadline is None else deadline
                if time.monotonic() >= deadline:
                    raise StorageAway(f"--storage: {self._shown}: {self._cause(error)}") from None
            time.sleep(0.5)

    def _cause(self, error: BaseException) -> str:
        """Return the driver's message without the password."""
        while error.__cause__ is not None:
            error = error.__cause__
        password = None if self._url is None else self._url.password
        text = str(getattr(error, "orig", None) or error)
        return text.replace(str(password), "***") if password else text


def _read_url(text: str) -> "URL":
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # whose messages may repeat it
        raise UserError(
            "--storage: is not the address of a database; expected sqlite:///FILE or "
            "postgresql+psycopg://USER:PASSWORD@HOST/DATABASE"
        ) from None
    if url.drivername in ("postgres", "postgresql"):
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername == "postgresql+psycopg":
        require("psycopg", "postgres")
    try:
        url.get_dialect()
    except NoSuchModuleError:
        raise UserError(f"--storage: got {url.drivername}://...; SQLAlchemy knows no such database") from None
    return url
