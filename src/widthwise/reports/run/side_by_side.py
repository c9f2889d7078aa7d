"""What the newest checkpoints of runs knew, side by side: scores, their differences, and the items that flipped."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from widthwise.config_io import UserError
from widthwise.evaluation.estimate import SampleEstimate
from widthwise.evaluation.local_tasks import LocalTask, load_task
from widthwise.evaluation.pairing import flips, task_differences
from widthwise.records.estimate import Estimate
from widthwise.records.evaluation import Answers, Evaluation
from widthwise.records.run import Run
from widthwise.reports.page.formats import MISSING, clean, fixed, interval, shorten, signed
from widthwise.reports.page.table import Table
from widthwise.reports.run.evaluations import Question, questions
from widthwise.reports.run.validated import score_cell

MOST_ITEMS = 100
"""Flipped items of a task that a page lists."""
LETTERS = 300
"""Letters of a question that are shown."""


@dataclass(frozen=True)
class SideBySide:
    """The part of a page."""

    scores: Table
    differences: Table | None
    """None where no two runs answered the same questions of a task."""
    flipped: list[Table]


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
    pairs = list(_pairs(newest))
    rows = [row for pair in pairs for row in pair.rows()]
    header = ["Task", "metric", "first", "run", "run minus first", "interval", "gained", "lost", "p"]
    caption = (
        "Differences, item by item; gained: only the run has it right, lost: only the first; p: McNemar's exact test"
    )
    differences = Table(caption, header, rows, words={"metric", "first", "run"}) if rows else None
    return SideBySide(_scores(newest, list(named)), differences, [t for pair in pairs for t in pair.flipped()])


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
    questions: LocalTask | None
    """None where its file is not at hand any more, or says something else."""

    def rows(self) -> Iterator[list[str]]:
        for metric, found in (task_differences(self._record(self.before), self._record(self.after)) or {}).items():
            flipped = self._flips(metric)
            counts = [MISSING] * 3
            if flipped is not None:
                counts = [str(len(flipped["gained"])), str(len(flipped["lost"])), fixed(flipped["p_value"], 3)]
            names = [clean(self.task), clean(metric), clean(self.first), clean(self.other)]
            yield [*names, signed(found.value, 4), interval(_estimate(found), 4, True) or MISSING, *counts]

    def flipped(self) -> Iterator[Table]:
        """A table for each metric that is right or wrong, a row for each item that flipped."""
        for metric in self.after.items:
            flipped = self._flips(metric)
            if flipped is None or not flipped["gained"] + flipped["lost"]:
                continue
            right = {
                number: name for key, name in (("gained", self.other), ("lost", self.first)) for number in flipped[key]
            }
            rows = [[str(number), clean(right[number]), *self._words(number)] for number in sorted(right)[:MOST_ITEMS]]
            header = ["Item", "right is only", *(["question", "right answer"] if self.questions else [])]
            more = f", the first {MOST_ITEMS} of {len(right)}" if len(right) > MOST_ITEMS else ""
            between = f"{clean(self.first)} and {clean(self.other)}"
            caption = f"{clean(self.task)}, {clean(metric)}: what flipped between {between}{more}"
            yield Table(caption, header, rows, words=set(header[1:]))

    def _words(self, number: int) -> list[str]:
        if self.questions is None:
            return []
        return [
            shorten(text, LETTERS) for text in self.questions.items[number - 1].right_pair(self.questions.delimiter)
        ]

    def _flips(self, metric: str) -> dict[str, Any] | None:
        return flips(self._record(self.before), self._record(self.after), metric)

    @staticmethod
    def _record(answers: Answers) -> dict[str, Any]:
        return {"fingerprint": answers.fingerprint, "items": answers.items}


def _pairs(newest: Newest) -> Iterator[_Pair]:
    """The first run that answered the questions of a task, with each further one."""
    for question, own in newest.items():
        (first, (evaluation, before)), *others = own.items()
        for other, (_, after) in others:
            if before.items and before.items.keys() == after.items.keys():
                yield _Pair(question.name, first, other, before, after, _task(evaluation, before))


def _task(evaluation: Evaluation, answers: Answers) -> LocalTask | None:
    for file in evaluation.request.get("task_files") or ():
        try:
            task = load_task(Path(file), limit=evaluation.request.get("limit"))
        except UserError:
            continue
        if task.fingerprint == answers.fingerprint:
            return task
    return None


def _estimate(found: SampleEstimate) -> Estimate:
    low, high = found.interval()
    return Estimate.model_validate({"mean": found.value, "low": low, "high": high})
