"""The record of an experiment, read from its folder: of a comparison at the end, of a sweep as points finish."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from widthwise.experiments.equal_loss import validations_of
from widthwise.experiments.experiment import Experiment, run_path
from widthwise.experiments.outcome import SeedRuns, check_same_data, variant_of, windows
from widthwise.experiments.statistics import paired_mean, verdict
from widthwise.experiments.study import STUDY_FILE, Study
from widthwise.experiments.sweep import SweepConfig
from widthwise.records.estimate import CONFIDENCE
from widthwise.records.outcome import Judged, OpenPoint, Outcome, Variant
from widthwise.records.outcome import Study as StudyRecord
from widthwise.records.record import finite
from widthwise.run_dir import RunDir
from widthwise.runs.environment import environment


class Findings:
    """The results of an experiment, read from its folder as points finish."""

    def __init__(self, plan: Experiment, folder: Path, command: str, study: Study | None = None):
        """study: that of a search."""
        self._plan, self._folder, self._command, self._study = plan, folder, command, study
        self._trained: dict[str, SeedRuns] = {}
        self._variants: dict[tuple[str, bool], Variant] = {}
        """Name of a point, True if its baseline has finished -> the point."""

    def outcome(self, failures: Mapping[str, str]) -> Outcome:
        """Return the content of outcome.json so far.

        failures: points that could not be trained -> reason. Raises UserError if the runs saw different data, and where
        a result of a comparison is missing.
        """
        plan, drawn = self._plan, [] if self._study is None else self._study.drawn()
        states = self._states(drawn, failures)
        for name, point in states.items():
            if point["state"] == "finished":
                self._read(name)
        points = self._with_wide_verdicts([self._point(point) for point in states.values()])
        curves = [curve for own in self._trained.values() for curve in own.curves]
        validations = validations_of(curves) if curves else None
        n_done = sum(states[name]["state"] in ("finished", "failed") for name in plan.points)
        n_done += sum(each["state"] != "running" for each in drawn)
        return Outcome(
            title=plan.title_in(self._folder),
            command=self._command,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            confidence=CONFIDENCE,
            seeds=list(plan.seeds),
            matched=plan.match,
            baseline=plan.baseline,
            baseline_group=plan.baseline_group,
            environment=environment() if self._first_run is None else self._first_run.environment(),
            validations=validations,
            axes=dict(plan.axes or {}),  # pyright: ignore[reportArgumentType]
            points=points,
            study=None if plan.axes is None else self._study_record(points, n_done),
            judged=[] if plan.axes is None or plan.baseline_group is not None else list(self._judged(points)),
            tuning=plan.tuning,
        )

    def _study_record(self, points: Sequence[Variant | OpenPoint], n_done: int) -> StudyRecord:
        states = [point.state for point in points]
        search = self._plan.section.search if isinstance(self._plan.section, SweepConfig) else None
        return StudyRecord(
            storage="" if self._study is None else STUDY_FILE,
            sampler="grid" if search is None else search.sampler,
            n_points=self._plan.n_points,
            n_finished=states.count("finished"),
            n_failed=states.count("failed"),
            n_repeated=n_done - states.count("finished") - states.count("failed"),
        )

    def _with_wide_verdicts(self, points: Sequence[Variant | OpenPoint]) -> list[Variant | OpenPoint]:
        """Return the points of a sweep with verdicts by intervals widened for all of them, as that of the best one."""
        compared = [each.name for each in points if isinstance(each, Variant) and each.difference is not None]
        if self._plan.kind != "sweep" or self._plan.baseline is None or not compared:
            return list(points)
        wide, baseline = 1 - (1 - CONFIDENCE) / len(compared), self._plan.baseline
        found = {}
        for name in compared:
            found[name] = self._beside(name, baseline, self._windows(name), len(compared), wide).verdict
        return [each.with_changes(verdict=found[each.name]) if each.name in found else each for each in points]

    def _judged(self, points: Sequence[Variant | OpenPoint]) -> Iterator[Judged]:
        """Yield the best point but the baseline, or else the next best, and groups whose points none has selected.

        The best of many is partly the luckiest: its interval is widened for all at once (Bonferroni).
        """
        plan, baseline = self._plan, self._plan.baseline
        finished = [each for each in points if isinstance(each, Variant) and each.name != baseline and each.has_loss]
        ranked = sorted(finished, key=lambda each: finite(each.val_loss.mean))
        other = ranked[1].name if baseline is None and ranked[1:] else baseline
        if not ranked or other not in self._trained:
            return
        best, wide = ranked[0].name, 1 - (1 - CONFIDENCE) / len(ranked)
        if baseline is None:
            yield self._beside(best, other, self._windows(best), 2, CONFIDENCE)
        yield self._beside(best, other, self._windows(best), len(ranked), wide)
        for group in filter(None, plan.axes or {}) if baseline and plan.space is None else ():
            own = [each.name for each in ranked if each.group == group]
            if len(own) > 1:
                mean = np.mean([self._windows(name) for name in own], axis=0)
                yield self._beside(group, other, mean, len(own), CONFIDENCE)

    def _beside(self, name: str, other: str, losses: np.ndarray, n_points: int, confidence: float) -> Judged:
        difference = paired_mean(losses - self._windows(other), confidence)
        judged = {"difference": difference, "confidence": confidence, "verdict": verdict(difference)}
        return Judged(name=name, beside=other, n_points=n_points, **judged)

    def _windows(self, name: str) -> np.ndarray:
        return windows(self._trained[name].results)

    def _states(self, drawn: Sequence[Mapping[str, Any]], failures: Mapping[str, str]) -> dict[str, Mapping[str, Any]]:
        """Return every point once that has a name or failed without one: name, group, values, state and reason, as
        outcome.json has them."""
        found: dict[str, Mapping[str, Any]] = {}
        for name, point in self._plan.points.items():
            state, reason = self._state(name, failures.get(name))
            place = {"name": name, "group": point.group, "values": dict(point.values)}
            found[name] = {**place, "state": state, "reason": reason}
        for each in drawn:
            if not each["name"].startswith("#") or each["state"] == "failed":
                found.setdefault(each["name"], each)
        return found

    def _state(self, name: str, failure: str | None) -> tuple[str, str | None]:
        runs = [RunDir(self._folder / run_path(name, seed)) for seed in self._plan.seeds]
        # Another worker may have trained what this one could not, or its result may be on the way from its machine.
        if self._plan.axes is None or all(run.has_result for run in runs):
            return "finished", None
        if failure is not None:
            return "failed", failure
        return ("running" if any(run.is_in_use for run in runs) else "waiting"), None

    def _point(self, point: Mapping[str, Any]) -> Variant | OpenPoint:
        """Return a point, compared with its baseline if both have finished."""
        if point["state"] != "finished":
            return OpenPoint.model_validate(point)
        name, place = point["name"], {key: point[key] for key in ("group", "values")}
        beside = self._trained.get(self._plan.baseline_of(**place) or "")
        key = (name, beside is not None)
        if key not in self._variants:
            variant = variant_of(name, self._trained[name], beside)
            axes = tuple(f"{axis}." for axis in place["values"])
            unlike = {key: pair for key, pair in variant.differs_in.items() if not f"{key}.".startswith(axes)}
            self._variants[key] = variant.with_changes(**place, differs_in=unlike)
        return self._variants[key]

    def _read(self, name: str) -> None:
        """Read the runs of a finished point, once. Raises UserError if they saw other data than the first."""
        if name in self._trained:
            return
        found = SeedRuns.read(self._folder, [str(run_path(name, seed)) for seed in self._plan.seeds])
        runs = [RunDir(self._folder / path) for path in found.paths]
        for run in runs:
            check_same_data(run, self._first_run or runs[0])
        self._trained[name] = found

    @property
    def _first_run(self) -> RunDir | None:
        return next((RunDir(self._folder / own.paths[0]) for own in self._trained.values()), None)
