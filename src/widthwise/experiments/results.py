"""The results of each kind of experiment, read from its folder as runs finish, and the effect of a failed run."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast

import numpy as np

from widthwise.computing import Precision
from widthwise.config_io import checked_copy
from widthwise.evaluation.estimate import paired_mean, verdict
from widthwise.experiments.equal_loss import validations_of
from widthwise.experiments.jobs import Run
from widthwise.experiments.matching import Point
from widthwise.experiments.outcome import SeedRuns, check_same_data, variant_of, windows
from widthwise.experiments.plan import Comparison, Ladder, Plan, Sweep, run_path
from widthwise.experiments.scheduler import RunPolicy
from widthwise.files import write_first
from widthwise.mistakes import RunFailed, UserError
from widthwise.recipe.recipe import check_same_recipe
from widthwise.records.estimate import CONFIDENCE
from widthwise.records.outcome import Judgement, Outcome, Study, UnfinishedPoint, Variant
from widthwise.records.record import finite
from widthwise.records.run import PlannedRun, PlannedRuns
from widthwise.run_dir import RunDir
from widthwise.runs.environment import chosen_precision, environment
from widthwise.runs.listing import stop_message
from widthwise.training.launch import RankLocalError
from widthwise.training.observer import Observer

P = TypeVar("P", bound=Plan, covariant=True)
S = TypeVar("S", bound=Sweep, covariant=True)
PRECISION_FILE = "precision"
"""Holds the choice for `precision: auto` in an experiment."""
PointState = Literal["finished", "failed", "running", "waiting"]


@dataclass(frozen=True)
class PointStatus:
    """The state of one point of a sweep. reason: of its failure."""

    name: str
    group: str
    values: Mapping[str, Any]
    state: PointState
    reason: str | None = None


class Results(RunPolicy, ABC, Generic[P]):
    """The results of an experiment, as the policy of its runs."""

    def __init__(self, plan: P, folder: Path, command: str, observer: Observer):
        self.plan = plan
        self.folder = folder
        self.command = command
        self.observer = observer
        self.title = plan.page_title or folder.resolve().name
        self.failures: dict[str, str] = {}
        """Point that could not be trained -> the reason; empty if a failed run stops the experiment."""
        self._trained: dict[str, SeedRuns] = {}
        """Name of a finished point -> its runs."""
        self._variants: dict[tuple[str, bool], Variant] = {}
        """(Point name, whether its baseline has finished) -> its record."""
        self._first_read: RunDir | None = None
        """The first run that was read. All runs must have read the same data."""

    def begin(self) -> list[Run]:
        """Write planned.json, and return the runs of the listed points, in the order of training."""
        runs = [self._run(self.plan.points[name], seed) for name, seed in self.plan.order]
        planned = [
            PlannedRun(path=str(run_path(name, seed)), variant=name, seed=seed, n_steps=run.recipe.train.steps)
            for (name, seed), run in zip(self.plan.order, runs)
        ]
        record = PlannedRuns(title=self.title, command=self.command, baseline=self.plan.baseline, runs=planned)
        record.write(self.folder)
        return runs

    def close(self) -> None:
        """Release the locks of a search, after `begin`."""

    @cached_property
    def precision(self) -> Precision:
        """The precision of all runs with `precision: auto`, on all machines; the first worker chooses it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        chosen = chosen_precision(self.folder, self.observer)
        return cast(Precision, write_first(self.folder / PRECISION_FILE, f"{chosen}\n").strip())

    def _run(self, point: Point, seed: int) -> Run:
        """Return the run of a point. The seed determines the initial weights and the order of the text."""
        recipe = point.recipe.settled(lambda: self.precision)
        recipe = checked_copy(recipe, "recipe", train=checked_copy(recipe.train, "train", seed=seed))
        return Run(self.folder / run_path(point.name, seed), recipe, point.name)

    def write(self) -> Outcome:
        """Write the results so far, and return them.

        Raises UserError if runs read different data, or if a result is missing.
        """
        outcome = self._outcome()
        outcome.write(self.folder)
        return outcome

    @abstractmethod
    def _outcome(self) -> Outcome:
        """Return the record of the results so far."""

    def _record(self, points: Sequence[Variant | UnfinishedPoint], **fields: Any) -> Outcome:
        """Return the record. fields: further fields of this kind of experiment."""
        plan = self.plan
        curves = [curve for runs in self._trained.values() for curve in runs.curves]
        # A file omits fields that are not set, even if they have defaults.
        defaults = {"baseline_group": None, "axes": {}, "study": None, "judged": [], "tuning": None}
        return Outcome(
            title=self.title,
            command=self.command,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            confidence=CONFIDENCE,
            seeds=list(plan.seeds),
            matched=plan.match,
            baseline=plan.baseline,
            environment=environment() if self._first_read is None else self._first_read.environment(),
            validations=validations_of(curves) if curves else None,
            points=points,
            **defaults | fields,
        )

    def _runs_of(self, name: str) -> list[RunDir]:
        return [RunDir(self.folder / run_path(name, seed)) for seed in self.plan.seeds]

    def _read(self, name: str) -> None:
        """Read the runs of a finished point, once. Raises UserError if they read other data than the first run."""
        if name not in self._trained:
            runs = self._runs_of(name)
            trained = SeedRuns.read(self.folder, [str(run_path(name, seed)) for seed in self.plan.seeds])
            first = self._first_read or runs[0]
            for run in runs:
                check_same_data(run, first)
            self._first_read = first
            self._trained[name] = trained

    def _variant(self, name: str, group: str, values: Mapping[str, Any]) -> Variant:
        """Return a finished point, compared with its baseline if the baseline has finished too."""
        baseline = self._trained.get(self.plan.baseline_of(group, values) or "")
        key = (name, baseline is not None)
        if key not in self._variants:
            variant = variant_of(name, self._trained[name], baseline)
            self._variants[key] = variant.with_changes(group=group, values=dict(values))
        return self._variants[key]


class ComparisonResults(Results[Comparison]):
    """The results of a comparison, written when all runs have finished. A failed run stops it."""

    def finished(self, run: Run, is_last: bool) -> None:
        first = RunDir(self.folder / run_path(*self.plan.order[0]))
        if first.exists:  # if not, `write` checks it at the end
            check_same_data(RunDir(run.path), first)

    def _outcome(self) -> Outcome:
        for name in self.plan.points:
            self._read(name)
        points = [self._variant(point.name, point.group, point.values) for point in self.plan.points.values()]
        return self._record(points, tuning=self.plan.tuning)


class SweepResults(Results[S]):
    """The results of a sweep. A failed point is recorded with the reason; the record is written after each point."""

    averages_groups: ClassVar[bool] = True
    """True if the mean of each group is compared with the baseline."""

    def may_begin(self, run: Run) -> bool:
        """Return False for a run that has diverged, because it would diverge again.

        Raises UserError if the diverged run has another recipe.
        """
        previous = RunDir(run.path)
        reason = stop_message(previous)
        if reason is None:
            return True
        check_same_recipe(previous, run.recipe.resolved())
        self._fail(run.point, f"{run.path}: {reason}", is_final=True)
        return False

    def finished(self, run: Run, is_last: bool) -> None:
        if is_last:
            self.write()

    def failed(self, run: Run, error: BaseException) -> None:
        fails_point = isinstance(error, (UserError, RunFailed)) and not isinstance(error, RankLocalError)
        # A refused finished run has another recipe; its result must not count for this point.
        if not fails_point or RunDir(run.path).has_result:
            raise error
        if run.point not in self.failures:
            self._fail(run.point, str(error), is_final=isinstance(error, RunFailed))
            self.observer.message(f"failed: {self.failures[run.point]}")
            self.write()

    def _fail(self, point: str, reason: str, is_final: bool) -> None:
        """Record why a point failed. is_final: True if it diverged; otherwise a later start retries it."""
        self.failures[point] = reason.replace(f"{self.folder}/", "")

    def _drawn(self) -> list[PointStatus]:
        """Return the points that a study has drawn. The name of a point without a name yet is "#" and a number."""
        return []

    def _outcome(self) -> Outcome:
        """Return the record of all points, finished or not. Points that were drawn repeatedly are listed once."""
        points_and_repeats = [*(self._status(point) for point in self.plan.points.values()), *self._drawn()]
        n_ended = sum(point.state in ("finished", "failed") for point in points_and_repeats)
        by_name = dict[str, PointStatus]()
        for point in points_and_repeats:
            if not point.name.startswith("#") or point.state == "failed":
                by_name.setdefault(point.name, point)
        finished = [name for name, point in by_name.items() if point.state == "finished"]
        for name in finished:
            self._read(name)
        points = list[Variant | UnfinishedPoint]()
        for name, point in by_name.items():
            if point.state == "finished":
                points.append(self._variant(name, point.group, point.values))
            else:
                points.append(UnfinishedPoint(**vars(point)))
        n_failed = sum(point.state == "failed" for point in points)
        study = Study(
            storage=self.plan.storage,
            sampler=self.plan.sampler,
            n_points=self.plan.n_points,
            n_finished=len(finished),
            n_failed=n_failed,
            n_repeated=n_ended - len(finished) - n_failed,
        )
        return self._record(**self._judgement(points), axes=dict(self.plan.axes), study=study)

    def _status(self, point: Point) -> PointStatus:
        """Return the state of a listed point."""
        runs = self._runs_of(point.name)
        state: PointState = "waiting"
        reason = None
        # Another worker may have trained a point that failed here, or its result may arrive from another machine.
        if all(run.has_result for run in runs):
            state = "finished"
        elif point.name in self.failures:
            state = "failed"
            reason = self.failures[point.name]
        elif any(run.is_in_use for run in runs):
            state = "running"
        return PointStatus(point.name, point.group, dict(point.values), state, reason)

    def _judgement(self, points: Sequence[Variant | UnfinishedPoint]) -> dict[str, Any]:
        """Return the fields of the record with verdicts. Intervals are widened for the number of compared points."""
        baseline = self.plan.baseline
        compared = [point.name for point in points if isinstance(point, Variant) and point.difference is not None]
        wide = 1 - (1 - CONFIDENCE) / max(len(compared), 1)
        with_verdicts = list[Variant | UnfinishedPoint]()
        for point in points:
            if baseline is not None and point.name in compared:
                difference = self._difference(point.name, [point.name], baseline, len(compared), wide)
                point = point.with_changes(verdict=difference.verdict)
            with_verdicts.append(point)
        return {"points": with_verdicts, "judged": list(self._judged(points))}

    def _judged(self, points: Sequence[Variant | UnfinishedPoint]) -> Iterator[Judgement]:
        """Yield the best point, compared with the baseline, or else with the next best; then the means of groups.

        The best of many points is partly the luckiest, so its interval is widened for their number (Bonferroni).
        """
        baseline = self.plan.baseline
        finished = [
            point for point in points if isinstance(point, Variant) and point.name != baseline and point.has_loss
        ]
        ranked = sorted(finished, key=lambda point: finite(point.val_loss.mean))
        rival = baseline or (ranked[1].name if len(ranked) > 1 else None)
        if not ranked or rival not in self._trained:
            return
        best = ranked[0].name
        wide = 1 - (1 - CONFIDENCE) / len(ranked)
        if baseline is None:
            yield self._difference(best, [best], rival, 2, CONFIDENCE)  # also not widened
        yield self._difference(best, [best], rival, len(ranked), wide)
        if baseline is None or not self.averages_groups:
            return
        for group in self.plan.axes:
            names = [point.name for point in ranked if point.group == group]
            if group and len(names) > 1:
                yield self._difference(group, names, rival, len(names), CONFIDENCE)

    def _difference(self, title: str, names: list[str], rival: str, n_points: int, confidence: float) -> Judgement:
        """Return the mean of points minus a rival. n_points: number of points that were compared or averaged."""
        mean = np.mean([windows(self._trained[name].results) for name in names], axis=0)
        difference = paired_mean(mean - windows(self._trained[rival].results), confidence)
        judged = {"difference": difference, "confidence": confidence, "verdict": verdict(difference)}
        return Judgement(name=title, beside=rival, n_points=n_points, **judged)


class LadderResults(SweepResults[Ladder]):
    """The results of a ladder, of which no size is selected as the best."""

    def _judgement(self, points: Sequence[Variant | UnfinishedPoint]) -> dict[str, Any]:
        return {"points": points, "baseline_group": self.plan.baseline_group}
