"""The newest checkpoints of runs side by side: scores, and their differences item by item."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from widthwise.evaluation.differences import flips, task_differences
from widthwise.evaluation.estimate import SampleEstimate
from widthwise.records.estimate import Estimate
from widthwise.records.evaluation import Answers, Evaluation
from widthwise.records.run import Run
from widthwise.reports.page.formats import MISSING, clean, fixed, interval, signed
from widthwise.reports.page.table import Table
from widthwise.reports.run.evaluations import Question, questions
from widthwise.reports.run.validated import score_cell


@dataclass(frozen=True)
class SideBySide:
    """The part of a page."""

    scores: Table
    differences: Table | None
    """None where no two runs answered the same questions of a task."""


Newest = Mapping[Question, Mapping[str, tuple[Evaluation, Answers]]]
"""Question -> run -> its newest answers."""


def side_by_side(named: Mapping[str, Run]) -> SideBySide | None:
    """None for runs that were not evaluated."""
    newest: dict[Question, dict[str, tuple[Evaluation, Answers]]] = {}
    for name, run in named.items():
        for evaluation in run.evaluations:  # by step, so that the newest comes last
            for question, answers in questions(evaluation):
                newest.setdefault(question, {})[name] = (evaluation, answers)
    if not newest:
        return None
    rows = [row for pair in _pairs(newest) for row in pair.rows()]
    header = ["Task", "metric", "first", "run", "run minus first", "interval", "gained", "lost", "p"]
    caption = (
        "Differences, item by item; gained: only the run has it right, lost: only the first; p: McNemar's exact test"
    )
    differences = Table(caption, header, rows, words={"metric", "first", "run"}) if rows else None
    return SideBySide(_scores(newest, list(named)), differences)


def _scores(newest: Newest, runs: Sequence[str]) -> Table:
    rows = []
    for question, own in newest.items():
        metrics = dict.fromkeys(metric for _, answers in own.values() for metric in answers.metrics)
        title = question.title([each for each in newest if each.name == question.name])
        for metric in metrics:
            cells = [score_cell(own[run][1].metrics.get(metric)) if run in own else MISSING for run in runs]
            rows.append([title, clean(metric), *cells])
    caption = "The newest checkpoint that was evaluated (standard error)"
    return Table(caption, ["Text or task", "metric", *map(clean, runs)], rows, words={"metric"})


@dataclass(frozen=True)
class _Pair:
    """Two runs that answered the same questions."""

    task: str
    first: str
    other: str
    before: Answers
    after: Answers

    def rows(self) -> Iterator[list[str]]:
        for metric, found in (task_differences(self._record(self.before), self._record(self.after)) or {}).items():
            flipped = self._flips(metric)
            counts = [MISSING] * 3
            if flipped is not None:
                counts = [str(len(flipped["gained"])), str(len(flipped["lost"])), fixed(flipped["p_value"], 3)]
            names = [clean(self.task), clean(metric), clean(self.first), clean(self.other)]
            yield [*names, signed(found.value, 4), interval(_estimate(found), 4, True) or MISSING, *counts]

    def _flips(self, metric: str) -> dict[str, Any] | None:
        return flips(self._record(self.before), self._record(self.after), metric)

    @staticmethod
    def _record(answers: Answers) -> dict[str, Any]:
        return {"fingerprint": answers.fingerprint, "items": answers.items}


def _pairs(newest: Newest) -> Iterator[_Pair]:
    """The first run that answered the questions of a task, with each further one."""
    for question, own in newest.items():
        (first, (_, before)), *others = own.items()
        for other, (_, after) in others:
            if before.items and before.items.keys() == after.items.keys():
                yield _Pair(question.name, first, other, before, after)


def _estimate(found: SampleEstimate) -> Estimate:
    low, high = found.interval()
    return Estimate.model_validate({"mean": found.value, "low": low, "high": high})
