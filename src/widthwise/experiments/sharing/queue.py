"""The queue of an experiment, kept in an Optuna study, so that workers on one or several machines share it.

It holds tasks: the points of a sweep, or the runs of a comparison. Every task has a key. A waiting trial is a task to
be done; the worker that sets its state to running owns it, and the database decides which one that is. A running trial
has a heartbeat; if that stops, another worker declares it lost and puts a copy into the queue. A trial that failed
without a reason was lost and counts for nothing. If several trials have one key (a worker that died at the wrong moment
can leave that), the first that is not lost is the task.

Tasks are queued and read through Optuna's public API, and claimed below it, because what it offers for that is weaker.
GridSampler lets two workers train one point, as its documentation says. `Study.ask` and `Study.optimize` make a trial
run before its first sign of life, so that a worker killed in between holds its task for ever, and they invent a trial
where none waits. RetryHeartbeatStaleTrialCallback also copies trials that are not ours, and reasons with them.
"""

import math
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from widthwise.config_io import UserError
from widthwise.experiments.sharing.storage import Storage, StorageAway
from widthwise.experiments.sharing.trials import (
    KEY,
    MISTAKE,
    POINT,
    REASON,
    REPLACES,
    TaskState,
    again,
    entry,
    standing,
    state,
)

if TYPE_CHECKING:
    import optuna
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

IDENTITY = "identity"
"""User attribute of the study: the settings that its workers must share."""

FILL_SECONDS = 5
"""How long tasks may be missing from the queue before a worker concludes that no other is about to add them."""


class ClaimLost(Exception):
    """A trial was declared lost while it was running, as after a machine slept; another worker has it."""


class Queue:
    """The tasks of one experiment, for one worker."""

    def __init__(self, storage: Storage, name: str, identity: Mapping[str, str]):
        """Opens or creates a study. Raises UserError if it belongs to another experiment.

        identity: each setting that all workers must share -> advice for when they do not.
        """
        self.storage, self.name, self._rdb = storage, name, storage.rdb
        self._is_maker, self._missing_since, self._missing = False, 0.0, set()
        self._study = storage.patiently(self._enter_study)
        self._check_identity(identity)

    def _enter_study(self) -> "optuna.Study":
        import optuna

        with suppress(optuna.exceptions.DuplicatedStudyError):
            optuna.create_study(study_name=self.name, storage=self._rdb)
            self._is_maker = True
        return optuna.load_study(study_name=self.name, storage=self._rdb)

    def _check_identity(self, identity: Mapping[str, str]) -> None:
        found = None if self._is_maker else self._wait_for_identity()
        if found is None and any(KEY not in trial.user_attrs for trial in self._all_trials()):
            raise UserError(
                f"study {self.name} in {self.storage.shown}: was not made by widthwise; choose another with --study"
            )
        if found is None:
            # Its maker died in between where it is not us.
            self.storage.patiently(lambda: self._study.set_user_attr(IDENTITY, list(identity)))
            found = self._study.user_attrs[IDENTITY]
        for (value, advice), other in zip(identity.items(), found):
            if value != other:
                raise UserError(f"study {self.name} in {self.storage.shown}: {advice}")

    def _wait_for_identity(self) -> list[str] | None:
        deadline = time.monotonic() + FILL_SECONDS
        while time.monotonic() < deadline:
            if (found := self.storage.patiently(lambda: self._study.user_attrs.get(IDENTITY))) is not None:
                return found
            time.sleep(0.2)
        return None

    def entries(self) -> dict[str, TaskState]:
        """Key -> the state of the task, for all that were ever queued."""
        return {key: entry(key, trial) for key, trial in self._standing().items()}

    def _trials(self) -> "list[FrozenTrial]":
        """The trials of tasks; another tool may have added others."""
        return [trial for trial in self._all_trials() if KEY in trial.user_attrs]

    def _all_trials(self) -> "list[FrozenTrial]":
        try:
            return self.storage.patiently(lambda: self._study.get_trials(deepcopy=False))
        except KeyError:
            raise StorageAway(f"study {self.name} in {self.storage.shown}: is not there any more") from None

    def _standing(self) -> "dict[str, FrozenTrial]":
        """Key -> the trial that represents its task."""
        return standing(self._trials())

    def fill(self, keys: Sequence[str]) -> None:
        """Queues missing tasks: at once in a new study, otherwise when no other worker seems to do it."""
        present = self._standing()
        missing = {key for key in keys if key not in present}
        now = time.monotonic()
        if missing != self._missing:
            self._missing, self._missing_since = missing, now
        if not missing or not (self._is_maker or now - self._missing_since > FILL_SECONDS):
            return
        import optuna

        for key in filter(missing.__contains__, keys):
            trial = optuna.create_trial(state=optuna.trial.TrialState.WAITING, user_attrs={KEY: key})
            self._add(trial)
        self._missing = set()

    def try_mistakes_again(self) -> None:
        """Queues tasks that failed for a reason that may have been fixed since, such as a full disk."""
        for trial in self._standing().values():
            if state(trial) == "failed" and trial.user_attrs.get(MISTAKE):
                self._add(again(trial, **{REPLACES: trial.number}))

    def _add(self, trial: "FrozenTrial") -> None:
        self.storage.patiently(lambda: self._study.add_trial(trial))

    def declare_lost(self) -> None:
        """Queues again the tasks of processes whose heartbeat has stopped."""
        from optuna.exceptions import ExperimentalWarning
        from optuna.storages import fail_stale_trials

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            self.storage.patiently(lambda: fail_stale_trials(self._study))

    def claim(self) -> "Claim | None":
        """The first waiting task, now this worker's; None if none is waiting."""
        from optuna.trial import TrialState

        for trial in self._trials():
            if trial.state == TrialState.WAITING and self._take(trial._trial_id):
                claim = Claim(self, trial)
                if self._standing()[trial.user_attrs[KEY]].number == trial.number:
                    return claim
                claim.drop()  # another trial stands for the task
        return None

    def _take(self, trial_id: int) -> bool:
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        # Before the state: a running trial without a sign of life would never be declared lost.
        self.storage.patiently(lambda: self._rdb.record_heartbeat(trial_id))
        try:
            return self.storage.patiently(lambda: self._rdb.set_trial_state_values(trial_id, TrialState.RUNNING))
        except UpdateFinishedTrialError:
            return False


class Claim:
    """A task that this worker owns. As a context manager it sends a heartbeat."""

    def __init__(self, queue: Queue, trial: "FrozenTrial"):
        self._queue, self._storage, self._rdb = queue, queue.storage, queue.storage.rdb
        self._id = trial._trial_id
        self.key: str = trial.user_attrs[KEY]
        self._stop = threading.Event()
        self._heart = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> "Claim":
        self._heart.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._heart.join()

    def _beat(self) -> None:
        while not self._stop.wait(self._storage.heartbeat.interval_seconds):
            with suppress(Exception):  # the database is away; the next beat may reach it
                self._rdb.record_heartbeat(self._id)
        self._rdb.remove_session()

    def trial(self, sampler: "BaseSampler") -> "optuna.Trial":
        """The Optuna trial, from which a sampler's values are drawn."""
        import optuna

        study = optuna.load_study(study_name=self._queue.name, storage=self._rdb, sampler=sampler)
        study.get_trials(deepcopy=False)  # Optuna's cache writes only to trials that it has seen
        return optuna.Trial(study, self._id)

    def describe(self, point: Mapping[str, Any]) -> None:
        """Stores the name, group and values of a sweep's point in the trial."""
        self._act(lambda: self._rdb.set_trial_user_attr(self._id, POINT, dict(point)))

    def report(self, n_seeds: int, mean_loss: float) -> None:
        """Stores the mean over the finished seeds of a point."""
        self._act(lambda: self._rdb.set_trial_intermediate_value(self._id, n_seeds, mean_loss))

    def finish(self, loss: float) -> None:
        """Marks the task as finished. A loss that is not a number becomes infinite: SQLite has no NaN."""
        from optuna.trial import TrialState

        value = math.inf if math.isnan(loss) else loss
        self._act(lambda: self._rdb.set_trial_state_values(self._id, TrialState.COMPLETE, [value]))

    def fail(self, reason: str, is_mistake: bool) -> None:
        """Marks the task as failed. is_mistake: the cause can be fixed, so another start tries it again."""
        self._act(lambda: self._rdb.set_trial_user_attr(self._id, MISTAKE, is_mistake))
        self._act(lambda: self._rdb.set_trial_user_attr(self._id, REASON, reason))
        self.drop()

    def drop(self) -> None:
        """Ends the trial; unless a reason was stored before, it counts for nothing."""
        from optuna.trial import TrialState

        self._act(lambda: self._rdb.set_trial_state_values(self._id, TrialState.FAIL))

    def release(self) -> None:
        """Returns the task to the queue."""
        from optuna.trial import TrialState

        self._act(lambda: self._rdb.set_trial_state_values(self._id, TrialState.WAITING))

    def _act(self, act: Callable[[], object]) -> None:
        """Runs `act`. Raises ClaimLost if the trial was declared lost."""
        from optuna.exceptions import UpdateFinishedTrialError

        try:
            self._storage.patiently(act)
        except UpdateFinishedTrialError:
            raise ClaimLost(self.key) from None
