"""Texts and tasks: at the end of training, over the tokens of checkpoints, and the newest checkpoints side by side."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from widthwise.evaluation.differences import flips, task_differences
from widthwise.evaluation.estimate import SampleEstimate
from widthwise.records.estimate import Estimate
from widthwise.records.evaluation import Answers, Evaluation, Score, Scores
from widthwise.records.record import finite
from widthwise.records.run import Run, RunResult
from widthwise.reports.charts import Figure, Style
from widthwise.reports.curves import Bundle, Curve, by_step, curve_figure
from widthwise.reports.formats import MISSING, clean, fixed, interval, shorten, signed
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
    metrics = list(dict.fromkeys(metric for *_, task in tasks for metric in task.metrics))
    rows = [
        [
            clean(run),
            clean(name),
            f"{task.n_items:,}",
            fixed(task.chance, 3),
            *(score_cell(task.metrics.get(m)) for m in metrics),
        ]
        for run, name, task in tasks
    ]
    header = ["Run", "task", "items", "chance", *metrics]
    return Table("Tasks at the end of training (standard error)", header, rows, words=("task",)) if rows else None


def score_cell(score: Score | None) -> str:
    """Return a metric with its standard error behind it, if it has one."""
    if score is None or score.value is None:
        return MISSING
    return fixed(score.value, 4) + ("" if score.stderr is None else f" ({fixed(score.stderr, 4)})")


DRAWN = ("acc", "acc_norm", "bits_per_byte", "perplexity")
"""The metrics of which a figure is drawn; the others are functions of them, and stand in the tables."""


@dataclass(frozen=True)
class Question:
    """A text or a task, and how it was put to the model: what is equal may be joined into one line."""

    name: str
    options: tuple[tuple[str, object], ...]

    def title(self, others: "list[Question]") -> str:
        """Return its name, with the options in which it differs from others of the name."""
        names = [key for key, value in self.options if any(dict(each.options).get(key) != value for each in others)]
        chosen = [f"{key} {str(dict(self.options)[key])[:8]}" for key in names]
        return clean(self.name) + (f" ({', '.join(chosen)})" if chosen else "")


Course = dict[str, dict[float, Scores]]
"""Run -> tokens -> the scores then."""


def course_parts(named: Mapping[str, Run], looks: Mapping[str, Style]) -> list[Part | None]:
    """Return curves and tables of each text and task that was put to two or more checkpoints of a run."""
    courses: dict[Question, Course] = {}
    for name, run in named.items():
        for evaluation in run.evaluations:
            for question, answers in questions(evaluation):
                courses.setdefault(question, {}).setdefault(name, {})[_tokens(run, evaluation)] = answers.metrics
    courses = {question: course for question, course in courses.items() if max(map(len, course.values())) > 1}
    figures: list[Figure | None] = []
    tables: list[Table] = []
    for i, (question, course) in enumerate(courses.items()):
        title = question.title([each for each in courses if each.name == question.name])
        for metric in (metric for metric in _metrics(course) if metric in DRAWN):
            key, label = f"evaluation-{i}-{metric}", f"{metric} of {shorten(title, 50)}"
            figures.append(_figure(key, f"{title}: {metric}", course, metric, label, looks))
        tables.append(_table(title, course).folded)
    return [
        note("evaluations"),
        *figures,
        *tables,
    ]


def questions(evaluation: Evaluation) -> Iterator[tuple[Question, Answers]]:
    """Yield each question that a checkpoint was asked, with its answers."""
    read = {"max_length": evaluation.max_length, "precision": evaluation.precision}
    for name, text in evaluation.texts.items():
        yield _question(name, stride=evaluation.stride, text=text.fingerprint, **read), text
    for name, task in evaluation.tasks.items():
        yield _question(name, items=task.fingerprint, **read), task
    asked = {key: evaluation.request.get(key) for key in ("num_fewshot", "limit")}
    for name, scores in evaluation.lm_eval.items():
        yield _question(f"lm-eval {name}", **asked, **read), Answers(metrics=scores, fingerprint="")


def _question(name: str, **options: object) -> Question:
    return Question(name, tuple(sorted(options.items())))


def _tokens(run: Run, evaluation: Evaluation) -> float:
    """Return tokens trained on by then, by the evaluation or else by the records of training."""
    if evaluation.tokens is not None:
        return float(evaluation.tokens)
    known = by_step(run, "train", "tokens")
    return float(np.interp(evaluation.step, [0.0, *known.x], [0.0, *known.y]))


def _metrics(course: Course) -> list[str]:
    return list(dict.fromkeys(metric for own in course.values() for scores in own.values() for metric in scores))


def _figure(key: str, title: str, course: Course, metric: str, label: str, looks: Mapping[str, Style]) -> Figure | None:
    bundles = []
    for name, own in course.items():
        tokens = sorted(own)
        values = [finite(own[n][metric].value) if metric in own[n] else np.nan for n in tokens]
        curve = Curve(np.array(tokens), np.array(values, dtype=float))
        bundles.append(Bundle(name, looks[name], [curve], curve))
    return curve_figure(key, title, bundles, "tokens", label)


def _table(title: str, course: Course) -> Table:
    """A row for each checkpoint, and the standard error of a number behind it."""
    metrics = _metrics(course)
    rows = [
        [clean(name), f"{n:,.0f}", *(score_cell(own[n].get(metric)) for metric in metrics)]
        for name, own in course.items()
        for n in sorted(own)
    ]
    return Table(f"{title}, by checkpoint (standard error)", ["Run", "tokens", *metrics], rows)


Newest = Mapping[Question, Mapping[str, tuple[Evaluation, Answers]]]
"""Question -> run -> its newest answers."""


def newest_tables(named: Mapping[str, Run]) -> tuple[Table | None, Table | None]:
    """Return the newest scores of each run, and differences where two answered the same questions of a task."""
    newest: dict[Question, dict[str, tuple[Evaluation, Answers]]] = {}
    for name, run in named.items():
        for evaluation in run.evaluations:  # by step, so that the newest comes last
            for question, answers in questions(evaluation):
                newest.setdefault(question, {})[name] = (evaluation, answers)
    if not newest:
        return None, None
    rows = list(_differences(newest))
    header = ["Task", "metric", "first", "run", "run minus first", "interval", "gained", "lost", "p"]
    caption = (
        "Differences, item by item; gained: only the run has it right, lost: only the first; p: McNemar's exact test"
    )
    return _scores(newest, list(named)), Table(
        caption, header, rows, words={"metric", "first", "run"}
    ) if rows else None


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


def _differences(newest: Newest) -> Iterator[list[str]]:
    """A row for each metric of a task: the first run that answered its questions, with each further one."""
    for question, own in newest.items():
        (first, (_, before)), *others = own.items()
        for other, (_, after) in others:
            if before.items and before.items.keys() == after.items.keys():
                for metric, *cells in _paired(before, after):
                    yield [clean(question.name), clean(metric), clean(first), clean(other), *cells]


def _paired(before: Answers, after: Answers) -> Iterator[list[str]]:
    """A metric, its difference with the interval, and which items changed."""
    first, other = ({"fingerprint": answers.fingerprint, "items": answers.items} for answers in (before, after))
    for metric, found in (task_differences(first, other) or {}).items():
        flipped, counts = flips(first, other, metric), [MISSING] * 3
        if flipped is not None:
            counts = [str(len(flipped["gained"])), str(len(flipped["lost"])), fixed(flipped["p_value"], 3)]
        yield [metric, signed(found.value, 4), interval(_estimate(found), 4, True) or MISSING, *counts]


def _estimate(found: SampleEstimate) -> Estimate:
    low, high = found.interval()
    return Estimate.model_validate({"mean": found.value, "low": low, "high": high})
