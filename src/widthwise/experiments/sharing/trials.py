"""The tasks of an experiment, read from the trials of its study."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

State = Literal["waiting", "running", "finished", "failed"]

KEY, POINT, REASON, MISTAKE, REPLACES = "key", "point", "reason", "mistake", "replaces"
"""User attributes of a trial: its task's key; what a sweep's point is; why it failed; whether another start may mend
that; the number of the failed trial in whose place it is."""

STATES: dict[str, State] = {
    "WAITING": "waiting",
    "RUNNING": "running",
    "COMPLETE": "finished",
    "FAIL": "failed",
    "PRUNED": "failed",
}


@dataclass(frozen=True)
class TaskState:
    """The state of one task."""

    key: str
    number: int
    """Number of the trial that represents the task."""
    state: State
    point: dict[str, Any] | None
    """Name, group and values of a sweep's point, once a worker has claimed it."""
    reason: str | None
    """Why the task failed, or None."""

    @property
    def is_done(self) -> bool:
        return self.state in ("finished", "failed")


def standing(trials: "Iterable[FrozenTrial]") -> "dict[str, FrozenTrial]":
    """Key -> the first trial that was neither lost nor replaced.

    Trials are numbered in order of creation, and whoever sees a trial sees all earlier ones, so all workers agree.
    """
    trials = sorted(trials, key=lambda trial: trial.number)
    replaced = {trial.user_attrs.get(REPLACES) for trial in trials if not _is_lost(trial)}
    found: dict[str, FrozenTrial] = {}
    for trial in trials:
        if not _is_lost(trial) and trial.number not in replaced:
            found.setdefault(trial.user_attrs[KEY], trial)
    return found


def _is_lost(trial: "FrozenTrial") -> bool:
    return state(trial) == "failed" and REASON not in trial.user_attrs


def state(trial: "FrozenTrial") -> State:
    return STATES[trial.state.name]


def entry(key: str, trial: "FrozenTrial") -> TaskState:
    attributes = trial.user_attrs
    return TaskState(key, trial.number, state(trial), attributes.get(POINT), attributes.get(REASON))


def put_back(study: "optuna.Study", trial: "FrozenTrial") -> None:
    """Queues a copy of a trial that was just declared lost. Optuna calls this in the one process that declared it."""
    if KEY in trial.user_attrs and REASON not in trial.user_attrs:
        study.add_trial(again(trial))


def again(trial: "FrozenTrial", **attributes: Any) -> "FrozenTrial":
    """A waiting trial for the same task, in place of the same failed trial, with the values a sampler chose."""
    import optuna

    kept = {key: trial.user_attrs[key] for key in (KEY, POINT, REPLACES) if key in trial.user_attrs}
    return optuna.create_trial(
        state=optuna.trial.TrialState.WAITING,
        params=trial.params,
        distributions=trial.distributions,
        user_attrs=kept | attributes,
    )
