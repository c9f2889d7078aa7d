"""The results of a sweep, a search or a ladder: failed points are recorded, and the best point is judged."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from widthwise.evaluation.estimate import paired_mean, verdict
from widthwise.experiments.jobs import Run
from widthwise.experiments.matching import Point
from widthwise.experiments.outcome import load_result, windows
from widthwise.experiments.plan import Ladder, Sweep
from widthwise.experiments.results import Results
from widthwise.experiments.study import PointState, PointStatus, Study
from widthwise.experiments.sweep import Search
from widthwise.mistakes import RunFailed, UserError
from widthwise.recipe.recipe import check_same_recipe
from widthwise.records.estimate import CONFIDENCE
from widthwise.records.outcome import Judged, OpenPoint, Outcome, Variant
from widthwise.records.outcome import Study as StudyRecord
from widthwise.records.record import finite
from widthwise.run_dir import RunDir
from widthwise.runs.listing import stop_message
from widthwise.training.launch import RankLocalError

ENDED = ("finished", "failed")
"""States of a point that is not trained any more."""
S = TypeVar("S", bound=Sweep, covariant=True)


class SweepResults(Results[S]):
    """The results of a sweep. A failed point is recorded with the reason; the record is written after each point."""

    averages_groups: ClassVar[bool] = True
    """True if the mean of each group is compared with the baseline."""

    def may_begin(self, run: Run) -> bool:
        """Return False for a run that has diverged, because it would diverge again. Raises UserError if it has another
        recipe."""
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
        is_of_point = isinstance(error, (UserError, RunFailed)) and not isinstance(error, RankLocalError)
        # A refused finished run has another recipe; its result must not count for this point.
        if not is_of_point or RunDir(run.path).has_result:
            raise error
        if run.point not in self.failures:
            self._fail(run.point, str(error), is_final=isinstance(error, RunFailed))
            self.observer.message(f"failed: {self.failures[run.point]}")
            self.write()

    def _fail(self, point: str, reason: str, is_final: bool) -> None:
        """Record why a point failed. is_final: it diverged; otherwise another start retries it."""
        self.failures[point] = reason.replace(f"{self.folder}/", "")

    def _outcome(self, drawn: Sequence[PointStatus] = ()) -> Outcome:
        """Return the record of all points, finished or not.

        drawn: points that a study has drawn. "#" begins the name of a point without a name.
        """
        listed = [self._status(point) for point in self.plan.points.values()]
        n_ended = sum(point.state in ENDED for point in (*listed, *drawn))
        named = [point for point in drawn if not point.name.startswith("#") or point.state == "failed"]
        by_name = dict[str, PointStatus]()
        for point in (*listed, *named):
            by_name.setdefault(point.name, point)
        finished = [name for name, point in by_name.items() if point.state == "finished"]
        for name in finished:
            self._read(name)
        points = list[Variant | OpenPoint]()
        for name, point in by_name.items():
            if point.state == "finished":
                points.append(self._variant(name, point.group, point.values))
            else:
                points.append(OpenPoint(**vars(point)))
        n_failed = sum(point.state == "failed" for point in points)
        study = StudyRecord(
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

    def _judgement(self, points: Sequence[Variant | OpenPoint]) -> dict[str, Any]:
        return {"points": self._with_wide_verdicts(points), "judged": list(self._judged(points))}

    def _with_wide_verdicts(self, points: Sequence[Variant | OpenPoint]) -> list[Variant | OpenPoint]:
        """Return the points with verdicts from intervals widened for their number, as for the best point."""
        baseline = self.plan.baseline
        if baseline is None:
            return list(points)
        compared = [point.name for point in points if isinstance(point, Variant) and point.difference is not None]
        wide = 1 - (1 - CONFIDENCE) / max(len(compared), 1)
        judged = list[Variant | OpenPoint]()
        for point in points:
            if point.name in compared:
                difference = self._difference(point.name, [point.name], baseline, len(compared), wide)
                point = point.with_changes(verdict=difference.verdict)
            judged.append(point)
        return judged

    def _judged(self, points: Sequence[Variant | OpenPoint]) -> Iterator[Judged]:
        """Yield the best point, compared with the baseline, or else with the next best; then the means of groups.

        The best of many points is partly the luckiest, so its interval is widened for their number (Bonferroni).
        """
        baseline = self.plan.baseline
        finished = [
            point for point in points if isinstance(point, Variant) and point.name != baseline and point.has_loss
        ]
        ranked = sorted(finished, key=lambda point: finite(point.val_loss.mean))
        rival = ranked[1].name if baseline is None and ranked[1:] else baseline
        if not ranked or rival not in self._trained:
            return
        best = ranked[0].name
        wide = 1 - (1 - CONFIDENCE) / len(ranked)
        if baseline is None:
            yield self._difference(best, [best], rival, 2, CONFIDENCE)
        yield self._difference(best, [best], rival, len(ranked), wide)
        for group in self.plan.axes if self.averages_groups and baseline else ():
            names = [point.name for point in ranked if point.group == group]
            if group and len(names) > 1:
                yield self._difference(group, names, rival, len(names), CONFIDENCE)

    def _difference(self, title: str, names: list[str], rival: str, n_points: int, confidence: float) -> Judged:
        """Return the mean of points minus a rival. n_points: number of points that were compared or averaged."""
        mean = np.mean([windows(self._trained[name].results) for name in names], axis=0)
        difference = paired_mean(mean - windows(self._trained[rival].results), confidence)
        judged = {"difference": difference, "confidence": confidence, "verdict": verdict(difference)}
        return Judged(name=title, beside=rival, n_points=n_points, **judged)


class LadderResults(SweepResults[Ladder]):
    """The results of a ladder, of which no size is selected as the best."""

    def _judgement(self, points: Sequence[Variant | OpenPoint]) -> dict[str, Any]:
        return {"points": points, "baseline_group": self.plan.baseline_group}


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
        return self._study.n_open

    def draw(self) -> list[Run]:
        point = self._study.take()
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

    def _outcome(self, drawn: Sequence[PointStatus] = ()) -> Outcome:
        return super()._outcome(self._study.drawn())
