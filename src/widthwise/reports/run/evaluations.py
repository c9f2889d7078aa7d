"""What the checkpoints of runs knew of texts and tasks, over the tokens that they were trained on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from widthwise.records.evaluation import Answers, Evaluation, Scores
from widthwise.records.record import finite
from widthwise.records.run import Run
from widthwise.reports.page.curves import Curve, by_step
from widthwise.reports.page.formats import clean, shorten
from widthwise.reports.page.html import Panel, panels
from widthwise.reports.page.plots import Bundle, curve_figure
from widthwise.reports.page.svg import Style
from widthwise.reports.page.table import Table
from widthwise.reports.run.validated import score_cell

DRAWN = ("acc", "acc_norm", "bits_per_byte", "perplexity")
"""The metrics of which a figure is drawn; the others are functions of them, and stand in the tables."""


@dataclass(frozen=True)
class Question:
    """A text or a task, and how it was put to the model: what is equal may be joined into one line."""

    name: str
    options: tuple[tuple[str, object], ...]

    def title(self, others: "list[Question]") -> str:
        """Its name, with the options in which it differs from others of the name."""
        names = [key for key, value in self.options if any(dict(each.options).get(key) != value for each in others)]
        chosen = [f"{key} {str(dict(self.options)[key])[:8]}" for key in names]
        return clean(self.name) + (f" ({', '.join(chosen)})" if chosen else "")


@dataclass(frozen=True)
class EvaluationsSection:
    """The section of a page: the curves, and a table for each text and task."""

    figures: list[Panel]
    tables: list[Table]


Course = dict[str, dict[float, Scores]]
"""Run -> tokens -> the scores then."""


def evaluations_section(named: Mapping[str, Run], styles: Mapping[str, Style]) -> EvaluationsSection | None:
    """None where no text or task was put to two checkpoints of a run."""
    courses: dict[Question, Course] = {}
    for name, run in named.items():
        for evaluation in run.evaluations:
            for question, answers in questions(evaluation):
                courses.setdefault(question, {}).setdefault(name, {})[_tokens(run, evaluation)] = answers.metrics
    courses = {question: course for question, course in courses.items() if max(map(len, course.values())) > 1}
    if not courses:
        return None
    figures: dict[str, Markup | None] = {}
    tables = []
    for i, (question, course) in enumerate(courses.items()):
        title = question.title([each for each in courses if each.name == question.name])
        for metric in (metric for metric in _metrics(course) if metric in DRAWN):
            label = f"{metric} of {shorten(title, 50)}"
            figures[f"{title}: {metric}"] = _figure(f"evaluation-{i}-{metric}", course, metric, label, styles)
        tables.append(_table(title, course))
    return EvaluationsSection(panels(figures), tables)


def questions(evaluation: Evaluation) -> Iterator[tuple[Question, Answers]]:
    """What a checkpoint was asked, and how it answered."""
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
    """Tokens trained on by then; of an evaluation that does not say, what the records of training say."""
    if evaluation.tokens is not None:
        return float(evaluation.tokens)
    known = by_step(run, "train", "tokens")
    return float(np.interp(evaluation.step, [0.0, *known.x], [0.0, *known.y]))


def _metrics(course: Course) -> list[str]:
    return list(dict.fromkeys(metric for own in course.values() for scores in own.values() for metric in scores))


def _figure(key: str, course: Course, metric: str, label: str, styles: Mapping[str, Style]) -> Markup | None:
    bundles = []
    for name, own in course.items():
        tokens = sorted(own)
        values = [finite(own[n][metric].value) if metric in own[n] else np.nan for n in tokens]
        curve = Curve(np.array(tokens), np.array(values, dtype=float))
        bundles.append(Bundle(name, styles[name], [curve], curve))
    return curve_figure(key, bundles, "tokens", label)


def _table(title: str, course: Course) -> Table:
    """A row for each checkpoint, and the standard error of a number behind it."""
    metrics = _metrics(course)
    rows = [
        [clean(name), f"{n:,.0f}", *(score_cell(own[n].get(metric)) for metric in metrics)]
        for name, own in course.items()
        for n in sorted(own)
    ]
    return Table(f"{title}, by checkpoint (standard error)", ["Run", "tokens", *metrics], rows)
