"""The results of an experiment, read from its folder as runs finish, and what a failed run stops."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from widthwise.computing import Precision
from widthwise.experiments.equal_loss import validations_of
from widthwise.experiments.jobs import Run
from widthwise.experiments.matching import Point
from widthwise.experiments.outcome import SeedRuns, check_same_data, variant_of
from widthwise.experiments.plan import Comparison, Plan, run_path, seeded
from widthwise.experiments.scheduler import RunPolicy
from widthwise.files import write_first
from widthwise.records.estimate import CONFIDENCE
from widthwise.records.outcome import OpenPoint, Outcome, Variant
from widthwise.records.run import PlannedRun, PlannedRuns
from widthwise.run_dir import RunDir
from widthwise.runs.environment import chosen_precision, environment
from widthwise.training.observer import Observer

P = TypeVar("P", bound=Plan, covariant=True)
PRECISION_FILE = "precision"
"""Holds the choice for `precision: auto` in an experiment."""


class Results(RunPolicy, Generic[P]):
    """The results of an experiment."""

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
        """Release what a search holds, after `begin`."""

    @cached_property
    def precision(self) -> Precision:
        """The precision of all runs of an experiment, on all machines, which the first worker chooses."""
        self.folder.mkdir(parents=True, exist_ok=True)
        chosen = chosen_precision(self.folder, self.observer)
        return cast(Precision, write_first(self.folder / PRECISION_FILE, f"{chosen}\n").strip())

    def _run(self, point: Point, seed: int) -> Run:
        recipe = seeded(point.recipe.settled(lambda: self.precision), seed)
        return Run(self.folder / run_path(point.name, seed), recipe, point.name)

    def write(self) -> Outcome:
        """Write the results so far, and return them.

        Raises UserError if runs read different data, or if a result is missing.
        """
        outcome = self._outcome()
        outcome.write(self.folder)
        return outcome

    def _outcome(self) -> Outcome:
        """Return the record, when all points have finished."""
        for name in self.plan.points:
            self._read(name)
        return self._record(
            [self._variant(point.name, point.group, point.values) for point in self.plan.points.values()]
        )

    def _record(self, points: Sequence[Variant | OpenPoint], **fields: Any) -> Outcome:
        plan = self.plan
        curves = [curve for runs in self._trained.values() for curve in runs.curves]
        # A record omits fields that it was not given, even if their defaults are meant.
        unset = {"baseline_group": None, "axes": {}, "study": None, "judged": [], "tuning": None}
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
            **unset | fields,
        )

    def _runs_of(self, name: str) -> list[RunDir]:
        return [RunDir(self.folder / run_path(name, seed)) for seed in self.plan.seeds]

    def _read(self, name: str) -> None:
        """Read the runs of a finished point, once. Raises UserError if they read other data than the first run."""
        if name not in self._trained:
            runs = self._runs_of(name)
            trained = SeedRuns.read(self.folder, [str(run_path(name, seed)) for seed in self.plan.seeds])
            for run in runs:
                check_same_data(run, self._first_read or runs[0])
            self._trained[name] = trained

    @property
    def _first_read(self) -> RunDir | None:
        return next((RunDir(self.folder / runs.paths[0]) for runs in self._trained.values()), None)

    def _variant(self, name: str, group: str, values: Mapping[str, Any]) -> Variant:
        """Return a finished point, compared with its baseline if the baseline has finished too."""
        baseline = self._trained.get(self.plan.baseline_of(group, values) or "")
        key = (name, baseline is not None)
        if key not in self._variants:
            variant = variant_of(name, self._trained[name], baseline)
            axes = tuple(f"{axis}." for axis in values)
            unequal = {path: pair for path, pair in variant.differs_in.items() if not f"{path}.".startswith(axes)}
            self._variants[key] = variant.with_changes(group=group, values=dict(values), differs_in=unequal)
        return self._variants[key]


class ComparisonResults(Results[Comparison]):
    """The results of a comparison, written when all runs have finished. A failed run stops it."""

    def finished(self, run: Run, is_last: bool) -> None:
        first = RunDir(self.folder / run_path(*self.plan.order[0]))
        if first.exists:  # if not, `write` checks it at the end
            check_same_data(RunDir(run.path), first)

    def _record(self, points: Sequence[Variant | OpenPoint], **fields: Any) -> Outcome:
        return super()._record(points, tuning=self.plan.tuning, **fields)
