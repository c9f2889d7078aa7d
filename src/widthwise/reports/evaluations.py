"""Texts and tasks: at the end of training, over the tokens of checkpoints, and the newest checkpoints side by side."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from widthwise.evaluation.differences import flips, task_differences
from widthwise.records.evaluation import Answers, Evaluation, Score, Scores
from widthwise.records.record import finite
from widthwise.records.run import Run, RunResult
from widthwise.reports.charts import Figure, Style
from widthwise.reports.curves import Curve, by_step, curve_figure
from widthwise.reports.formats import MISSING, clean, fixed, shorten, signed
from widthwise.reports.page import Part, note
from widthwise.reports.table import Table


def text_table(results: Mapping[str, RunResult]) -> Table | None:
    """Return one row for each text of each run; None where no recipe names any."""
    rows = [
        [clean(run), clean(name), fixed(text.loss, 4), fixed(text.perplexity, 2), fixed(text.bits_per_byte, 4)]
        for run, result in results.items()
        for name, text in (result.val_texts or {}).items()
    ]
    header = ["Run", "text", "loss", "perplexity", "bits per byte"]
    return Table("Loss on further texts", header, rows, words=("text",)) if rows else None


def task_table(results: Mapping[str, RunResult]) -> Table | None:
    """Return one row for each task of each run, with standard errors; None where no recipe names any."""
    tasks = [(run, name, task) for run, result in results.items() for name, task in (result.val_tasks or {}).items()]
    metrics = _metrics(task.metrics for *_, task in tasks)
    rows = [
        [clean(run), clean(name), f"{task.n_items:,}", fixed(task.chance, 3), *_cells(task.metrics, metrics)]
        for run, name, task in tasks
    ]
    header = ["Run", "task", "items", "chance", *metrics]
    return Table("Tasks at the end of training (standard error)", header, rows, words=("task",)) if rows else None


def _metrics(found: Iterable[Scores]) -> list[str]:
    return list(dict.fromkeys(metric for scores in found for metric in scores))


def _cells(scores: Scores, metrics: Iterable[str]) -> list[str]:
    return [score_cell(scores.get(metric)) for metric in metrics]


def score_cell(score: Score | None) -> str:
    """Return a metric with its standard error behind it, if it has one."""
    if score is None or score.value is None:
        return MISSING
    return fixed(score.value, 4) + ("" if score.stderr is None else f" ({fixed(score.stderr, 4)})")


DRAWN = ("acc", "acc_norm", "bits_per_byte", "perplexity")
"""The metrics of which a figure is drawn; the others are functions of them, and stand in the tables."""


class Question(NamedTuple):
    """A text or a task, and how it was put to the model: what is equal may be joined into one line."""

    name: str
    options: tuple[tuple[str, object], ...]

    def title(self, others: "Iterable[Question]") -> str:
        """Return its name, with the options in which it differs from others of the name."""
        alike = [dict(each.options) for each in others if each.name == self.name]
        differing = [(key, value) for key, value in self.options if any(each.get(key) != value for each in alike)]
        chosen = ", ".join(f"{key} {str(value)[:8]}" for key, value in differing)
        return clean(self.name) + (f" ({chosen})" if chosen else "")


def questions(evaluation: Evaluation) -> Iterator[tuple[Question, Answers]]:
    """Yield each question that a checkpoint was asked, with its answers."""

    def question(name: str, **options: object) -> Question:
        options |= {"max_length": evaluation.max_length, "precision": evaluation.precision}
        return Question(name, tuple(sorted(options.items())))

    for name, text in evaluation.texts.items():
        yield question(name, stride=evaluation.stride, text=text.fingerprint), text
    for name, task in evaluation.tasks.items():
        yield question(name, items=task.fingerprint), task
    asked = {key: evaluation.request.get(key) for key in ("num_fewshot", "limit")}
    for name, scores in evaluation.lm_eval.items():
        yield question(f"lm-eval {name}", **asked), Answers(metrics=scores, fingerprint="")


def course_parts(named: Mapping[str, Run], looks: Mapping[str, Style]) -> list[Part | None]:
    """Return curves and tables of each text and task that was put to two or more checkpoints of a run."""
    courses: dict[Question, dict[str, dict[float, Scores]]] = {}
    for name, run in named.items():
        for evaluation in run.evaluations:
            for question, answers in questions(evaluation):
                courses.setdefault(question, {}).setdefault(name, {})[_tokens(run, evaluation)] = answers.metrics
    courses = {question: course for question, course in courses.items() if max(map(len, course.values())) > 1}
    figures: list[Figure | None] = []
    tables: list[Table] = []
    for i, (question, course) in enumerate(courses.items()):
        course = {name: dict(sorted(own.items())) for name, own in course.items()}
        title, metrics = question.title(courses), _metrics(scores for own in course.values() for scores in own.values())
        for metric in (metric for metric in metrics if metric in DRAWN):
            curves: dict[str, Curve] = {}
            for name, own in course.items():
                values = [finite(scores[metric].value) if metric in scores else np.nan for scores in own.values()]
                curves[name] = Curve(np.array(list(own)), np.array(values, dtype=float))
            key, label = f"evaluation-{i}-{metric}", f"{metric} of {shorten(title, 50)}"
            figures.append(curve_figure(key, f"{title}: {metric}", curves, looks, "tokens", label))
        rows = [
            [clean(name), f"{n:,.0f}", *_cells(scores, metrics)]
            for name, own in course.items()
            for n, scores in own.items()
        ]
        caption = f"{title}, by checkpoint (standard error)"
        tables.append(Table(caption, ["Run", "tokens", *metrics], rows).folded)
    return [note("evaluations"), *figures, *tables]


def _tokens(run: Run, evaluation: Evaluation) -> float:
    """Return tokens trained on by then, by the evaluation or else by the records of training."""
    if evaluation.tokens is not None:
        return float(evaluation.tokens)
    known = by_step(run, "train", "tokens")
    return float(np.interp(evaluation.step, [0.0, *known.x], [0.0, *known.y]))


def newest_tables(named: Mapping[str, Run]) -> tuple[Table | None, Table | None]:
    """Return the newest scores of each run, and differences where two answered the same questions of a task."""
    newest: dict[Question, dict[str, Answers]] = {}
    for name, run in named.items():
        for evaluation in run.evaluations:  # by step, so that the newest comes last
            for question, answers in questions(evaluation):
                newest.setdefault(question, {})[name] = answers
    if not newest:
        return None, None
    scores = [
        [
            question.title(newest),
            clean(metric),
            *(score_cell(own[run].metrics.get(metric)) if run in own else MISSING for run in named),
        ]
        for question, own in newest.items()
        for metric in _metrics(answers.metrics for answers in own.values())
    ]
    caption, header = (
        "The newest checkpoint that was evaluated (standard error)",
        ["Text or task", "metric", *map(clean, named)],
    )
    differences = [row for question, own in newest.items() for row in _differences(question.name, own)]
    return Table(caption, header, scores, words={"metric"}), Table(
        "Differences, item by item; gained: only the run has it right, lost: only the first; p: McNemar's exact test",
        ["Task", "metric", "first", "run", "run minus first", "interval", "gained", "lost", "p"],
        differences,
        words={"metric", "first", "run"},
    ) if differences else None


def _differences(task: str, newest: Mapping[str, Answers]) -> Iterator[list[str]]:
    """Yield a row for each metric of a task: the first run that answered its questions, with each further one."""
    (first, before), *others = newest.items()
    for other, after in others:
        if not before.items or before.items.keys() != after.items.keys():
            continue
        for metric, found in (task_differences(before, after) or {}).items():
            flipped, counts = flips(before, after, metric), [MISSING] * 3
            if flipped is not None:
                counts = [str(len(flipped["gained"])), str(len(flipped["lost"])), fixed(flipped["p_value"], 3)]
            low, high = found.interval()
            ends = f"{signed(low, 4)} to {signed(high, 4)}" if math.isfinite(low) else MISSING
            yield [*map(clean, (task, metric, first, other)), signed(found.value, 4), ends, *counts]
