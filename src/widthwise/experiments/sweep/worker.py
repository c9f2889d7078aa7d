"""The workers of a sweep, which train the points of one study and summarise them."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from widthwise.config_io import UserError
from widthwise.experiments.agenda import Agenda, Work
from widthwise.experiments.crew import Crew, crew
from widthwise.experiments.jobs import Jobs, share_with_others
from widthwise.experiments.runs import run_path, seeded
from widthwise.experiments.sharing.queue import Claim, Queue
from widthwise.experiments.sharing.storage import Heartbeat, StorageAway, sqlite_url
from widthwise.experiments.sharing.worker import SharedPlace, Words, Worker
from widthwise.experiments.sweep.plan import SweepPlan, SweepPoint, point_name
from widthwise.experiments.sweep.summary import Findings
from widthwise.records.record import finite
from widthwise.records.sweep import Sweep
from widthwise.run_dir import RunFailed
from widthwise.runs.data_identity import DataShelf
from widthwise.runs.speed import chosen_precision
from widthwise.training.launch import OfOneProcess
from widthwise.training.observer import Observer, Silence
from widthwise.training.stopping import interruption_adds

STUDY_FILE = "study.db"
WORDS = Words(experiment="sweep", task="point")


def run_sweep(
    plan: SweepPlan,
    folder: Path,
    command: str,
    storage_url: str | None = None,
    study_name: str | None = None,
    heartbeat: Heartbeat | None = None,
    observer: Observer | None = None,
    jobs: Jobs | None = None,
) -> Sweep:
    """Works on a sweep, with all other workers, until all points have finished or failed; writes sweep.json.

    storage_url: a database that Optuna can use; default: a file in the folder. jobs: how many runs are trained here at
    a time. Returns the sweep. Raises UserError for a user mistake, and Interrupted after Ctrl-C or SIGTERM; the same
    call continues. Under torchrun all processes call this, and train each run together.
    """

    def work() -> Sweep:
        says, at_a_time = observer or Silence(), jobs or Jobs()
        plan = asked.settled(partial(chosen_precision, folder, says))
        processes.check_data(plan.reference[1], says)
        url = storage_url or sqlite_url(folder / STUDY_FILE)
        place = SharedPlace(folder, url, study_name or plan.title, heartbeat)
        queue = place.queue(WORDS, plan.identity)
        queue.try_mistakes_again()
        with interruption_adds(WORDS.advice):
            share_with_others(partial(_join, plan, place, processes.shelf, command), at_a_time, says)
        with at_a_time.threads():
            return _SweepWorker(plan, queue, folder, command, processes, says).work()

    asked = plan
    with crew(asked.reference[1]) as processes:
        return processes.do(work)


def _join(plan: SweepPlan, place: SharedPlace, shelf: DataShelf, command: str, observer: Observer) -> None:
    """What another worker on this machine does."""
    with crew(plan.reference[1], shelf) as processes:
        queue = place.queue(WORDS, plan.identity)
        _SweepWorker(plan, queue, place.folder, command, processes, observer).work()


class _SweepWorker:
    def __init__(self, plan: SweepPlan, queue: Queue, folder: Path, command: str, crew: Crew, observer: Observer):
        self._plan, self._folder, self._observer = plan, folder, observer
        self._findings, self._storage = Findings(plan, folder, command), queue.storage
        self._agenda = Agenda(observer, _works(plan))
        self._worker = Worker(WORDS, queue, plan.keys, crew, observer)

    def work(self) -> Sweep:
        for claim in self._worker.claims():
            with self._worker.at_work_on(claim):
                self._train(claim)
            self._write()
        return self._write()

    def _write(self) -> Sweep:
        sweep = self._findings.sweep(self._worker.entries().values(), self._storage.recorded)
        sweep.write(self._folder)
        return sweep

    def _train(self, claim: Claim) -> None:
        """Trains a point with all seeds, one after the other. If it cannot be trained, it fails with the reason."""
        try:
            point = self._point(claim)
        except StorageAway:
            raise
        except UserError as error:
            self._fail(claim, str(error), is_mistake=False)
            return
        try:
            loss = self._mean_loss(claim, point)
        except (StorageAway, OfOneProcess):  # the trouble is not the point's
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
        point = self._plan.point(group, values)
        if point.adjustment is not None:
            self._observer.message(f"{point.name}: {point.adjustment}")
        return point

    def _fail(self, claim: Claim, reason: str, is_mistake: bool) -> None:
        reason = reason.replace(f"{self._folder}/", "")
        self._observer.message(f"failed: {reason}")
        claim.fail(reason, is_mistake)

    def _mean_loss(self, claim: Claim, point: SweepPoint) -> float:
        losses: list[float] = []
        seeds = self._plan.config.seeds
        waiting, running = self._worker.others(claim)
        later = [run for key in waiting for run in _run_keys(key, seeds)]
        elsewhere = [_run_keys(key, seeds) for key in running]
        for index, (seed, run) in enumerate(zip(seeds, _run_keys(claim.key, seeds)), start=1):
            left = _run_keys(claim.key, seeds[index:]) + later
            with self._agenda.at_work_on(run, left, elsewhere) as observer:
                path = self._folder / run_path(point.name, seed)
                result = self._worker.train(seeded(point.recipe, seed), path, observer)
            losses.append(finite(result.val_loss))
            claim.report(len(losses), sum(losses) / len(losses))
        return sum(losses) / len(losses)


def _run_keys(key: str, seeds: Sequence[int]) -> list[str]:
    """What the agenda calls the runs of a point."""
    return [f"{key} {seed}" for seed in seeds]


def _works(plan: SweepPlan) -> dict[str, Work]:
    """For each run of the sweep, what it has to do; a point that is not drawn yet counts as the reference."""
    reference = Work.of(plan.reference[1])
    works = {key: Work.of(plan.grid[key].recipe) if key in plan.grid else reference for key in plan.keys}
    return {run: work for key, work in works.items() for run in _run_keys(key, plan.config.seeds)}


def _place(group: str, values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {"name": name, "group": group, "values": dict(values)}
