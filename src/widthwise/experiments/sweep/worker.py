"""The workers of a sweep, which train the points of one study and summarise them."""

import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from widthwise.config_io import UserError
from widthwise.data.config import open_data
from widthwise.experiments.runs import run_path, seeded
from widthwise.experiments.sweep.plan import SweepPlan, SweepPoint, point_name
from widthwise.experiments.sweep.queue import Claim, ClaimLost, Queue
from widthwise.experiments.sweep.storage import Heartbeat, Storage, StorageAway, sqlite_url
from widthwise.experiments.sweep.summary import Findings
from widthwise.experiments.sweep.trials import Entry
from widthwise.files import write_first
from widthwise.records.record import finite
from widthwise.records.run import RunResult
from widthwise.records.sweep import Sweep
from widthwise.run_dir import RunFailed, RunInUse
from widthwise.runs.train import train_or_resume
from widthwise.training.observer import Observer, Silence
from widthwise.training.stopping import Interrupted, interruption_adds, watch_signals

STUDY_FILE = "study.db"
FOLDER_FILE = "sweep_id"
"""Holds a random word that identifies the folder: all workers of a study must share it."""

LONGEST_POLL_SECONDS = 5.0


def run_sweep(
    plan: SweepPlan,
    folder: Path,
    command: str,
    storage_url: str | None = None,
    study_name: str | None = None,
    heartbeat: Heartbeat | None = None,
    observer: Observer | None = None,
) -> Sweep:
    """Works on a sweep, with all other workers, until all points have finished or failed; writes sweep.json.

    storage_url: a database that Optuna can use; default: a file in the folder. Returns the sweep. Raises UserError
    for a user mistake, and Interrupted after Ctrl-C or SIGTERM; the same call continues.
    """
    _check_data(plan, observer or Silence())
    folder.mkdir(parents=True, exist_ok=True)
    storage = Storage(storage_url or sqlite_url(folder / STUDY_FILE), heartbeat or Heartbeat())
    mark = write_first(folder / FOLDER_FILE, secrets.token_hex(16) + "\n").strip()
    identity = {
        plan.identity: "is one of another sweep; name another study with --study",
        mark: f"its workers use another folder than {folder}; all need one, on a disk they share; say it with --out, "
        "or begin another study with --study",
    }
    queue = Queue(storage, study_name or plan.title, identity)
    queue.try_mistakes_again()
    return _Worker(plan, queue, folder, command, observer or Silence()).work()


def _check_data(plan: SweepPlan, observer: Observer) -> None:
    """Raises UserError if there are no data, before points fail for that reason."""
    _, recipe = plan.reference
    recipe.held_out(open_data(recipe.data, observer.preparing)).check()


class _Worker:
    def __init__(self, plan: SweepPlan, queue: Queue, folder: Path, command: str, observer: Observer):
        self._plan, self._queue, self._folder, self._observer = plan, queue, folder, observer
        self._findings = Findings(plan, folder, command)
        self._keys = plan.keys
        self._poll_seconds = min(LONGEST_POLL_SECONDS, queue.storage.heartbeat.interval_seconds)

    def work(self) -> Sweep:
        said = None
        while True:
            self._queue.fill(self._keys)
            self._queue.declare_lost()
            if (claim := self._queue.claim()) is not None:
                with interruption_adds("the same sweep command goes on with the sweep"):
                    self._train(claim)
                self._write(self._entries())
                continue
            entries = self._entries()
            n_open = len(self._keys) - sum(entry.is_done for entry in entries.values())
            if n_open == 0:
                return self._write(entries)
            if n_open != said:
                self._observer.message(f"{n_open} points are at work elsewhere; waiting for them, or to take them over")
                said = n_open
            _wait(self._poll_seconds)

    def _entries(self) -> dict[str, Entry]:
        """Entries of the points of this plan, in its order; a longer search may have queued more."""
        found = self._queue.entries()
        return {key: found[key] for key in self._keys if key in found}

    def _write(self, entries: Mapping[str, Entry]) -> Sweep:
        sweep = self._findings.sweep(entries.values(), self._queue.storage.recorded)
        sweep.write(self._folder)
        return sweep

    def _train(self, claim: Claim) -> None:
        """Trains a point with all seeds, one after the other. If it cannot be trained, it fails with the reason."""
        try:
            with claim:
                self._train_all(claim)
        except ClaimLost:
            self._observer.message(f"{claim.key}: was taken over by another worker")
        except StorageAway:
            raise
        except BaseException:
            self._release(claim)
            raise

    def _release(self, claim: Claim) -> None:
        with suppress(ClaimLost, StorageAway):  # without a sign of life it will be released in time
            claim.release()

    def _train_all(self, claim: Claim) -> None:
        try:
            point = self._point(claim)
        except StorageAway:
            raise
        except UserError as error:
            self._fail(claim, str(error), is_mistake=False)
            return
        try:
            loss = self._mean_loss(claim, point)
        except StorageAway:
            raise
        except RunFailed as error:
            self._fail(claim, str(error), is_mistake=False)
        except UserError as error:
            self._fail(claim, str(error), is_mistake=True)
        else:
            claim.finish(loss)

    def _point(self, claim: Claim) -> SweepPoint:
        """The claimed point. Raises UserError if a sampler chose an impossible one."""
        point = self._plan.grid.get(claim.key)
        if point is not None:
            claim.describe(_place(point.group, point.values, point.name))
            return point
        group, values = self._plan.drawn(claim.trial(self._plan.sampler(claim.key)))
        claim.describe(_place(group, values, point_name(group, values)))
        return self._plan.point(group, values)

    def _fail(self, claim: Claim, reason: str, is_mistake: bool) -> None:
        reason = reason.replace(f"{self._folder}/", "")
        self._observer.message(f"failed: {reason}")
        claim.fail(reason, is_mistake)

    def _mean_loss(self, claim: Claim, point: SweepPoint) -> float:
        losses: list[float] = []
        for seed in self._plan.config.seeds:
            losses.append(finite(self._run(point, seed).val_loss))
            claim.report(len(losses), sum(losses) / len(losses))
        return sum(losses) / len(losses)

    def _run(self, point: SweepPoint, seed: int) -> RunResult:
        """The result of one run. Waits while another process works on it: a worker wrongly taken for dead, or one with
        an equal point of a search."""
        path, is_said = self._folder / run_path(point.name, seed), False
        while True:
            try:
                return train_or_resume(seeded(point.recipe, seed), path, self._observer)
            except RunInUse as error:
                if not is_said:
                    self._observer.message(f"{error}; waiting for it")
                is_said = True
            _wait(self._poll_seconds)


def _place(group: str, values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {"name": name, "group": group, "values": dict(values)}


def _wait(seconds: float) -> None:
    """Waits. Raises Interrupted after Ctrl-C or SIGTERM."""
    deadline = time.monotonic() + seconds
    with watch_signals() as watch:
        while watch.received is None and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))
    if watch.received is not None:
        raise Interrupted("stopped while waiting; the same sweep command goes on with the sweep", watch.received)
