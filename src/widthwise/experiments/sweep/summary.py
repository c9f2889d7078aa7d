"""The results of a sweep, over all its points."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from widthwise.experiments.equal_loss import Course, validations_of
from widthwise.experiments.runs import Trained, arrived, check_same_data, run_path, run_paths, variant_of, windows
from widthwise.experiments.sentences import difference_phrase, difference_sentence, interval, too_few_validations
from widthwise.experiments.sharing.trials import TaskState
from widthwise.experiments.statistics import paired_difference, verdict
from widthwise.experiments.sweep.plan import SweepPlan
from widthwise.records.comparison import Variant
from widthwise.records.estimate import CONFIDENCE, NO_VERDICT, Estimate, Validations
from widthwise.records.quantities import TITLES
from widthwise.records.record import finite
from widthwise.records.sweep import FinishedPoint, OpenPoint, Study, Sweep
from widthwise.run_dir import RunDir
from widthwise.runs.environment import environment

OUTCOMES = {
    "better": "still stands",
    "worse": "still stands",
    "no verdict": f"has {NO_VERDICT}",
}
"""Verdict under the wider interval -> what a note says of a selected difference; any other: "can be luck"."""


class Findings:
    """The results of a sweep, read from its folder as points finish."""

    def __init__(self, plan: SweepPlan, folder: Path, command: str):
        self._plan, self._folder, self._command = plan, folder, command
        self._trained: dict[str, Trained] = {}
        self._variants: dict[tuple[str, bool], Variant] = {}
        """Name of a point, and whether its baseline has finished -> the point."""

    def sweep(self, entries: Iterable[TaskState], storage: str) -> Sweep:
        """The content of sweep.json so far.

        entries: those of the study, in the order of the plan; storage: the address of the study, as shown to users.

        Raises UserError if a result is missing or the runs saw different data.
        """
        plan, config = self._plan, self._plan.config
        entries = list(entries)
        listed = list(self._listed(entries))
        for place, entry in listed:
            if entry is not None and entry.state == "finished":
                self._read(place["name"])
        points = [self._point(*each) for each in listed]
        n_done = sum(entry.is_done for entry in entries)
        states = [point.state for point in points]
        baseline = plan.baseline and plan.baseline.name
        return Sweep(
            title=plan.title,
            command=self._command,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            metric="val_loss",
            confidence=CONFIDENCE,
            seeds=list(config.seeds),
            matched=plan.matched,
            baseline=baseline,
            baseline_group=plan.baseline_group,
            sentence="\n".join(self._sentences(points, baseline, n_done)),
            environment=dict(self._environment()),
            validations=self._validations,
            axes=plan.axes_as_data(),
            points=points,
            study=Study(
                storage=storage,
                sampler="grid" if config.search is None else config.search.sampler,
                n_points=plan.n_points,
                n_finished=states.count("finished"),
                n_failed=states.count("failed"),
            ),
        )

    def _listed(self, entries: Iterable[TaskState]) -> Iterator[tuple[Mapping[str, Any], TaskState | None]]:
        """Every named point once, with its state; points that failed before they had a name, by their number."""
        found = {entry.key: entry for entry in entries}
        for name, point in self._plan.grid.items():
            yield {"name": name, "group": point.group, "values": point.values}, found.pop(name, None)
        names = set(self._plan.grid)
        for entry in found.values():
            place = entry.point
            if place is None and entry.state == "failed":
                place = {"name": entry.key, "group": "", "values": {}}
            if place is not None and place["name"] not in names:
                names.add(place["name"])
                yield place, entry

    def _point(self, place: Mapping[str, Any], entry: TaskState | None) -> FinishedPoint | OpenPoint:
        if entry is None or entry.state != "finished":
            state, reason = ("waiting", None) if entry is None else (entry.state, entry.reason)
            return OpenPoint.model_validate({**place, "state": state, "reason": reason})
        beside = {**place, "state": "finished", "reason": None}
        baseline = self._plan.baseline_of(place["group"], place["values"])
        return FinishedPoint.model_validate({**self._variant(place["name"], baseline), **beside})

    def _variant(self, name: str, baseline: str | None) -> Variant:
        """The runs of a finished point, compared with those of its baseline if that has finished."""
        beside = None if baseline is None else self._trained.get(baseline)
        key = (name, beside is not None)
        if key not in self._variants:
            self._variants[key] = variant_of(name, self._trained[name], beside)
        return self._variants[key]

    @property
    def _validations(self) -> Validations | None:
        courses = [course for own in self._trained.values() for course in own.courses]
        return validations_of(courses) if courses else None

    def _read(self, name: str) -> None:
        """Reads the runs of a finished point, once. Raises UserError if they saw other data than the first."""
        if name in self._trained:
            return
        paths = run_paths(name, self._plan.config.seeds)
        runs = [RunDir(self._folder / path) for path in paths]
        results = [arrived(run) for run in runs]
        for run in runs:
            check_same_data(run, self._first_run or runs[0])
        self._trained[name] = Trained(paths, results, [Course.of(run.metrics()) for run in runs])

    @property
    def _first_run(self) -> RunDir | None:
        for name in self._trained:
            return RunDir(self._folder / run_path(name, self._plan.config.seeds[0]))
        return None

    def _environment(self) -> Mapping[str, Any]:
        return environment() if self._first_run is None else self._first_run.environment()

    def _sentences(
        self, points: Sequence[FinishedPoint | OpenPoint], baseline: str | None, n_done: int
    ) -> Iterator[str]:
        finished = [point for point in points if isinstance(point, FinishedPoint)]
        ranked = sorted(
            (point for point in finished if point.name != baseline), key=lambda point: finite(point.val_loss.mean)
        )
        if self._plan.baseline_group is not None and any(point.difference for point in finished):
            yield from self._beside_group(finished)
        elif baseline in self._trained and ranked:
            yield from self._beside_baseline(ranked, str(baseline))
        elif ranked:
            yield from self._among_themselves(ranked)
        if any(point.difference for point in finished):
            yield from too_few_validations(self._validations)
        failed = [point.name for point in points if point.state == "failed"]
        if failed:
            yield f"{len(failed)} of {self._plan.n_points} points failed: {', '.join(failed)}."
        if n_again := n_done - len(finished) - len(failed):
            yield f"{n_again} of {self._plan.n_points} points are what the search had chosen before, and count once."
        if n_open := self._plan.n_points - n_done:
            yield f"{n_open} of {self._plan.n_points} points have not finished."

    def _beside_baseline(self, ranked: Sequence[FinishedPoint], baseline: str) -> Iterator[str]:
        best, n_looked_at = ranked[0], len(ranked)
        if n_looked_at > 1:
            yield f"Of {n_looked_at} points{self._alike} {best.name} has the lowest held-out loss."
        if best.difference is not None:
            yield difference_sentence(best, best.difference, baseline)
        if n_looked_at > 1:
            yield self._selection_note(best.name, baseline, n_looked_at)
            found = [point.verdict or "cannot tell" for point in ranked]
            counts = ", ".join(f"{found.count(word)} {word}" for word in dict.fromkeys(found))
            yield f"Each for itself beside {baseline}: {counts}."
        yield from self._groups(ranked, baseline)

    def _beside_group(self, finished: Sequence[FinishedPoint]) -> Iterator[str]:
        """For each group its differences at every size, and then more on every point; none was selected."""
        for group in dict.fromkeys(point.group for point in finished if point.difference is not None):
            sizes = [
                _at_size(point, point.difference) for point in finished if point.group == group and point.difference
            ]
            yield f"{group} beside {self._plan.baseline_group}, size by size: {'; '.join(sizes)}."
        for point in finished:
            if point.difference is not None:
                baseline = self._plan.baseline_of(point.group or "", point.values)
                yield difference_sentence(point, point.difference, str(baseline))

    def _groups(self, ranked: Sequence[FinishedPoint], baseline: str) -> Iterator[str]:
        """Sentences on whole groups of a grid, whose points were not selected (a sampler would have)."""
        if self._plan.config.search is not None:
            return
        for group in filter(None, self._plan.config.axes):
            names = [point.name for point in ranked if point.group == group]
            if len(names) > 1:
                mean = np.mean([self._windows(name) for name in names], axis=0)
                difference = paired_difference(mean, self._windows(baseline), CONFIDENCE)
                phrase = difference_phrase(difference, verdict(difference), baseline)
                yield f"On average over its {len(names)} points {group} {phrase} ({interval(difference)})."

    def _among_themselves(self, ranked: Sequence[FinishedPoint]) -> Iterator[str]:
        best, *others = ranked
        loss = finite(best.val_loss.mean)
        yield f"{best.name} has the lowest held-out loss of {len(ranked)} points{self._alike}, {loss:.4f} nats."
        if others:
            second = others[0].name
            difference = self._difference(best.name, second, CONFIDENCE)
            phrase = difference_phrase(difference, verdict(difference), second)
            yield f"Beside the next best it {phrase} ({interval(difference)})."
            yield self._selection_note(best.name, second, len(ranked))

    @property
    def _alike(self) -> str:
        """ " at equal parameters", or nothing where nothing is equal."""
        matched = self._plan.matched
        return "" if matched in (None, "none") else f" at equal {TITLES.get(matched, matched)}"

    def _difference(self, name: str, other: str, confidence: float) -> Estimate:
        return paired_difference(self._windows(name), self._windows(other), confidence)

    def _windows(self, name: str) -> np.ndarray:
        return windows(self._trained[name].results)

    def _selection_note(self, best: str, other: str, n_looked_at: int) -> str:
        """Notes that the best of many is partly the luckiest, with an interval for all at once (Bonferroni)."""
        confidence = 1 - (1 - CONFIDENCE) / n_looked_at
        wide = self._difference(best, other, confidence)
        outcome = OUTCOMES.get(verdict(wide), "can be luck")
        return (
            f"As the best of {n_looked_at} points looked at it looks better than it is; with an interval widened for "
            f"that many (Bonferroni), its difference to {other} {outcome} ({interval(wide, confidence)})."
        )


def _at_size(point: FinishedPoint, difference: Estimate) -> str:
    """`d24 -0.0123 nats (95% interval -0.0203 to -0.0043), better`."""
    size = ", ".join(map(str, point.values.values()))
    return f"{size} {finite(difference.mean):+.4f} nats ({interval(difference)}), {point.verdict or 'cannot tell'}"
