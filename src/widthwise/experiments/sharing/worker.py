"""The workers of an experiment: processes, on one or several machines, that take its tasks from one queue."""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from widthwise.experiments.crew import Crew
from widthwise.experiments.sharing.queue import Claim, ClaimLost, Queue
from widthwise.experiments.sharing.storage import Heartbeat, Storage, StorageAway
from widthwise.experiments.sharing.trials import TaskState
from widthwise.files import write_first
from widthwise.recipe.recipe import Recipe
from widthwise.records.run import RunResult
from widthwise.run_dir import RunInUse
from widthwise.training.observer import Observer
from widthwise.training.stopping import interruption_adds

LONGEST_POLL_SECONDS = 5.0


@dataclass(frozen=True)
class Words:
    """What a kind of experiment is called in messages and files."""

    experiment: str
    task: str

    @property
    def advice(self) -> str:
        """How to go on after an interruption."""
        return f"the same command goes on with the {self.experiment}"


class SharedPlace(NamedTuple):
    """Where the workers of an experiment meet."""

    folder: Path
    """The experiment's folder, into which all of them write."""
    url: str
    """Address of a database that Optuna can use."""
    study: str
    """Name of the study in the database."""
    heartbeat: Heartbeat | None
    """None: the default one."""

    def queue(self, words: Words, identity: str) -> Queue:
        """The queue of the experiment, and its folder, each made where there is none.

        identity: equal for experiments that may share a study. Raises UserError if the study belongs to another one, or
        its workers use another folder.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        storage = Storage(self.url, self.heartbeat or Heartbeat())
        mark = write_first(self.folder / f"{words.experiment}_id", secrets.token_hex(16) + "\n").strip()
        advice = {
            identity: f"is one of another {words.experiment}; name another study with --study",
            mark: f"its workers use another folder than {self.folder}; all need one, on a disk they share; say it with "
            "--out, or begin another study with --study",
        }
        return Queue(storage, self.study, advice)


class Worker:
    """Takes tasks from a queue, each of which is a run or several."""

    def __init__(self, words: Words, queue: Queue, keys: Sequence[str], crew: Crew, observer: Observer):
        self._words, self._queue, self._keys, self._crew, self._observer = words, queue, keys, crew, observer
        self._poll_seconds = min(LONGEST_POLL_SECONDS, queue.storage.heartbeat.interval_seconds)

    def claims(self) -> Iterator[Claim]:
        """Claims one task after another until all are done, here or elsewhere. Raises Interrupted while it waits."""
        said = None
        while True:
            self._queue.fill(self._keys)
            self._queue.declare_lost()
            if (claim := self._queue.claim()) is not None:
                yield claim
                continue
            n_open = len(self._keys) - sum(entry.is_done for entry in self.entries().values())
            if n_open == 0:
                return
            if n_open != said:
                self._observer.message(
                    f"{n_open} {self._words.task}s are at work elsewhere; waiting for them, or to take them over"
                )
                said = n_open
            with interruption_adds(self._words.advice):
                self._crew.wait(self._poll_seconds)

    def entries(self) -> dict[str, TaskState]:
        """Entries of the keys, in their order; a longer search may have queued more."""
        found = self._queue.entries()
        return {key: found[key] for key in self._keys if key in found}

    def others(self, claim: Claim) -> tuple[list[str], list[str]]:
        """Keys of the tasks besides the claimed one: of those that wait, and of those at work in other processes."""
        states = {key: entry.state for key, entry in self.entries().items() if key != claim.key}
        waiting, running = ([key for key in states if states[key] == state] for state in ("waiting", "running"))
        return waiting, running

    @contextmanager
    def at_work_on(self, claim: Claim) -> Iterator[None]:
        """Keeps the claim while the block does the task. An exception returns the task to the queue, but for that of
        a claim which another worker has taken over: this only ends the block."""
        try:
            with interruption_adds(self._words.advice), claim:
                yield
        except ClaimLost:
            self._observer.message(f"{claim.key}: was taken over by another worker")
        except StorageAway:
            raise
        except BaseException:
            with suppress(ClaimLost, StorageAway):  # without a sign of life it will be released in time
                claim.release()
            raise

    def train(self, recipe: Recipe, path: Path, observer: Observer) -> RunResult:
        """The result of one run. Waits while another process works on it: a worker wrongly taken for dead, or one with
        an equal point of a search."""
        is_said = False
        while True:
            try:
                return self._crew.train(recipe, path, observer)
            except RunInUse as error:
                if not is_said:
                    self._observer.message(f"{error}; waiting for it")
                is_said = True
            self._crew.wait(self._poll_seconds)
