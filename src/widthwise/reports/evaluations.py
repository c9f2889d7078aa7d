"""Scores of checkpoints on texts and tasks, for a page and the terminal: side by side, over training, differences."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from widthwise.evaluation.differences import paired_answers
from widthwise.evaluation.estimate import FEWEST_BLOCKS
from widthwise.evaluation.paper_tasks import is_share
from widthwise.evaluation.perplexity import BLOCK_BYTES
from widthwise.records.estimate import CONFIDENCE
from widthwise.records.evaluation import (
    Difference,
    Evaluation,
    EvaluationDifferences,
    ItemAnswers,
    Score,
    Scores,
    SuiteAnswers,
    TaskResult,
    harness_answers,
)
from widthwise.records.record import finite
from widthwise.records.run import Run, RunResult
from widthwise.reports.charts import Figure, Looks
from widthwise.reports.curves import Curve, by_step, curve_figure
from widthwise.reports.formats import MISSING, clean, counted, fixed, percentage, shorten, si, signed
from widthwise.reports.page import Part, note
from widthwise.reports.table import Table

NAME_LETTERS = 32
NAMES = ("text or task", "metric")
DRAWN = ("acc", "acc_norm", "bits_per_byte", "perplexity")
"""The metrics of which a figure is drawn; the others are functions of them, and stand in the tables."""


def _metrics(found: Iterable[Scores]) -> list[str]:
    return list(dict.fromkeys(metric for scores in found for metric in scores))


def score_cell(metric: str, score: Score | None) -> str:
    """Return a value, in percent for an accuracy, with its standard error below it if it has one."""
    if score is None or score.value is None:
        return MISSING
    scale, unit, n_decimals = _unit(metric)
    error = "" if score.stderr is None else f"\n± {fixed(scale * score.stderr, n_decimals)}{unit}"
    return fixed(scale * score.value, n_decimals) + unit + error


def _unit(metric: str) -> tuple[float, str, int]:
    """Return scale, unit and decimals."""
    return (100.0, "%", 2) if is_share(metric) else (1.0, "", 4)


class Question(NamedTuple):
    """A text or a task, and how it was put to the model: what is equal may be joined into one line."""

    name: str
    options: tuple[tuple[str, object], ...] = ()

    def title(self, others: "Iterable[Question]") -> str:
        """Return its name, with the options in which it differs from others of the name."""
        alike = [dict(each.options) for each in others if each.name == self.name]
        differing = [(key, value) for key, value in self.options if any(each.get(key) != value for each in alike)]
        chosen = ", ".join(f"{key} {str(value)[:8]}" for key, value in differing)
        return _tail(self.name) + (f" ({chosen})" if chosen else "")


class Answers(NamedTuple):
    """The answers of a checkpoint to a question."""

    metrics: Scores
    remarks: Sequence[str] = ()
    items: ItemAnswers | None = None
    """Those to the questions of a task one by one."""


def answers(evaluation: Evaluation) -> Iterator[tuple[Question, Answers]]:
    """Yield each question that a checkpoint was asked, with its answers."""

    def question(name: str, **options: object) -> Question:
        options |= {"max_length": evaluation.max_length, "precision": evaluation.precision}
        return Question(clean(name), tuple(sorted(options.items())))

    for name, text in evaluation.texts.items():
        few = f"{counted(text.n_blocks, 'block')} of {BLOCK_BYTES:,} bytes: too few for a standard error"
        remarks = [f"{text.n_bytes:,} bytes", *[few] * (text.n_blocks < FEWEST_BLOCKS)]
        yield question(name, stride=evaluation.stride, text=text.fingerprint), Answers(text.metrics, remarks)
    if evaluation.text_means is not None:
        read = tuple(text.fingerprint for text in evaluation.texts.values())
        asked = question(f"mean over {len(read)} texts", stride=evaluation.stride, texts=read)
        yield asked, Answers(evaluation.text_means.metrics)
    for name, task in evaluation.tasks.items():
        yield question(name, items=task.fingerprint), _of_task(task, evaluation.max_length, task)
    options = {key: evaluation.request.get(key) for key in ("num_fewshot", "limit")}
    for name, scores in evaluation.lm_eval.items():
        yield question(harness_answers(name), **options), Answers(scores)
    if (suite := evaluation.suite) is not None and suite.average is not None:
        yield question(suite.name, tasks=tuple(suite.average.tasks), **options), Answers({"average": suite.average})


def _of_task(task: TaskResult, max_length: int | None, items: ItemAnswers | None = None) -> Answers:
    remarks = [f"{task.n_items:,} items" + (f", chance {fixed(100 * task.chance, 1)}%" if task.chance else "")]
    remarks += [f"{task.n_cut_contexts:,} contexts cut to {max_length or 0:,} tokens"] if task.n_cut_contexts else []
    return Answers(task.metrics, remarks, items)


def _tail(name: str) -> str:
    """Return the end of a long name, because the end of a path says more than its beginning."""
    name = clean(name)
    return name if len(name) <= NAME_LETTERS else "…" + name[1 - NAME_LETTERS :]


Joined = Mapping[Question, Mapping[str, Answers]]
"""Question -> the answers of each model that was asked it."""


def _joined(models: Mapping[str, Iterable[tuple[Question, Answers]]]) -> Joined:
    """Join what was asked alike; of several answers of a model the last count."""
    found: dict[Question, dict[str, Answers]] = {}
    for model, own in models.items():
        for question, each in own:
            found.setdefault(question, {})[model] = each
    return found


def _side_by_side(caption: str, models: Sequence[str], joined: Joined) -> Table:
    """Return a row for each metric of each question, and a column for each model."""
    rows = []
    for question, own in joined.items():
        name = question.title(joined)
        for metric in _metrics(each.metrics for each in own.values()):
            scores = [own[model].metrics.get(metric) if model in own else None for model in models]
            rows.append([name, clean(metric), *(score_cell(metric, score) for score in scores)])
            name = ""
        remarks = dict.fromkeys(text for each in own.values() for text in each.remarks)
        rows += [[f"  {remark}", "", *[""] * len(models)] for remark in remarks]
    return Table(caption, [*NAMES, *map(clean, models)], rows, words=NAMES, sortable=False)


def final_table(results: Mapping[str, RunResult]) -> Table | None:
    """Return the scores at the end of training on the texts and tasks that recipes name; None without any."""

    def found(result: RunResult) -> Iterator[tuple[Question, Answers]]:
        for name, text in (result.val_texts or {}).items():
            numbers = {"loss": text.loss, "perplexity": text.perplexity, "bits_per_byte": text.bits_per_byte}
            yield Question(name), Answers({metric: Score(value=value) for metric, value in numbers.items()})
        for name, task in (result.val_tasks or {}).items():
            yield Question(name), _of_task(task, result.cost.seq_len)

    joined = _joined({name: found(result) for name, result in results.items()})
    return _side_by_side("Texts and tasks at the end of training", list(results), joined) if joined else None


def evaluation_tables(
    evaluations: Sequence[Evaluation], differences: Iterable[EvaluationDifferences] = ()
) -> list[Table]:
    """Return the scores of models that were asked alike, with the paper's table if asked for, and their differences."""
    names = _names([each.run for each in evaluations])
    alone = evaluations[0].step if len(evaluations) == 1 else None
    found = {names[each.run] + ("" if alone is None else f", step {alone}"): each for each in evaluations}
    asked_alike = {
        model: [(Question(question.name), own) for question, own in answers(each)] for model, each in found.items()
    }
    tables = [_side_by_side("Side by side" if len(found) > 1 else "Scores", list(found), _joined(asked_alike))]
    if suites := {model: each.suite for model, each in found.items() if each.suite is not None}:
        tables.append(suite_table(suites))
    return tables + [difference_table(each.run, each.baseline, each.differences) for each in differences]


def _names(paths: Sequence[str]) -> dict[str, str]:
    """Return path -> the name of its folder if all of these differ, else the end of the path, else all of it."""
    for short in (lambda path: clean(Path(path).name), _tail):
        names = {path: short(path) for path in paths}
        if len(set(names.values())) == len(names):
            return names
    return {path: clean(path) for path in paths}


def suite_table(suites: Mapping[str, SuiteAnswers]) -> Table:
    """Return a paper's table, transposed: a row for each of its columns, and a column for each model.

    That of a single model has the file or task that answered, too.
    """
    first, *others = suites.values()
    rows = [
        [row.name, row.metric, *(score_cell(row.metric, each.rows[i]) for each in suites.values())]
        + [row.source] * (not others)
        for i, row in enumerate(first.rows)
    ]
    notes = [f"without {part}" for part in dict.fromkeys(part for each in suites.values() for part in each.missing)]
    if (average := first.average) is not None:
        is_partial = average.n_tasks < average.n_tasks_of_suite
        remarks = [f"{average.n_tasks} of {average.n_tasks_of_suite} tasks"] if is_partial else []
        remarks += [] if average.is_printed else ["not in the paper"]
        name = "Avg." + (f" ({', '.join(remarks)})" if remarks else "")
        rows.append([name, "", *(score_cell("average", each.average) for each in suites.values())])
        notes += ["the paper weights its average and does not say how"] if average.has_unknown_weights else []
    header = [*NAMES, *suites, *["source"] * (not others)]
    return Table(first.name, header, rows, words=(*NAMES, "source"), note="\n".join(notes))


def difference_table(name: str, baseline: str, differences: Iterable[Difference]) -> Table:
    """Return the differences of one model to the baseline, with their intervals and the items that flipped."""
    rows, previous, is_flipped = [], None, False
    for each in differences:
        shown = "" if each.on == previous else _tail(each.on)
        previous = each.on
        if each.metric is None:
            rows.append([shown, "other text or questions"])
            continue
        scale, unit, n_decimals = _unit(each.metric)
        value, low, high = (
            MISSING if number is None else signed(scale * number, n_decimals) + unit
            for number in (each.value, each.low, each.high)
        )
        is_known = bool(each.stderr)  # where nothing differs, nothing is known of how much it could
        rows.append([shown, each.metric, value, f"{low} to {high}" if is_known else ""])
        if each.flips is not None:
            is_flipped = True
            rows[-1] += [f"{len(each.flips.gained):,}", f"{len(each.flips.lost):,}", fixed(each.flips.p_value, 3)]
    header = [*NAMES, "difference", f"{percentage(CONFIDENCE)} interval", *["gained", "lost", "p"][: 3 * is_flipped]]
    title = f"{_tail(name)} minus {_tail(baseline)}, item by item"
    words = "gained, lost: items that only this run or only the baseline has right; p: exact test of McNemar"
    return Table(title, header, rows, words=NAMES, sortable=False, note=words if is_flipped else "")


Course = Mapping[str, Mapping[tuple[int, float], Scores]]
"""Run -> step and tokens of a checkpoint -> its scores on one text or task."""


def _courses(asked: Iterable[tuple[Question, str, tuple[int, float], Scores]], fewest: int = 1) -> dict[str, Course]:
    """Return text or task -> its course, of those that a run was asked at `fewest` checkpoints or more.

    asked: question, run, step and tokens, scores.
    """
    found: dict[Question, dict[str, dict[tuple[int, float], Scores]]] = {}
    for question, run, at, scores in asked:
        found.setdefault(question, {}).setdefault(run, {})[at] = scores
    found = {question: own for question, own in found.items() if max(map(len, own.values())) >= fewest}
    return {
        question.title(found): {run: dict(sorted(own.items())) for run, own in course.items()}
        for question, course in found.items()
    }


def _course_table(title: str, course: Course) -> Table:
    metrics = _metrics(scores for own in course.values() for scores in own.values())
    rows = [
        [clean(run), f"{step:,}", MISSING if np.isnan(tokens) else si(tokens)]
        + [score_cell(metric, scores.get(metric)) for metric in metrics]
        for run, own in course.items()
        for (step, tokens), scores in own.items()
    ]
    return Table(f"{title}, by checkpoint", ["Run", "step", "tokens", *metrics], rows)


def _course_figures(key: str, title: str, course: Course, looks: Looks) -> Iterator[Figure | None]:
    """Yield curves over tokens, of the metrics in DRAWN."""
    for metric in _metrics(scores for own in course.values() for scores in own.values()):
        if metric in DRAWN:
            curves = {
                run: Curve(
                    np.array([tokens for _, tokens in own]),
                    np.array([finite(scores[metric].value) if metric in scores else np.nan for scores in own.values()]),
                )
                for run, own in course.items()
            }
            label = f"{metric} of {shorten(title, 50)}"
            yield curve_figure(f"{key}-{metric}", f"{title}: {metric}", curves, looks, "tokens", label)


def course_parts(named: Mapping[str, Run], looks: Looks) -> list[Part | None]:
    """Return curves and tables of each text and task that was put to two or more checkpoints of a run."""
    asked = (
        (question, name, (each.step or 0, _tokens(run, each)), own.metrics)
        for name, run in named.items()
        for each in run.evaluations
        for question, own in answers(each)
    )
    courses = _courses(asked, fewest=2)
    figures = [_course_figures(f"evaluation-{i}", *each, looks) for i, each in enumerate(courses.items())]
    tables = [_course_table(*each).folded for each in courses.items()]
    return [note("evaluations"), *itertools.chain.from_iterable(figures), *tables]


def _tokens(run: Run, evaluation: Evaluation) -> float:
    """Return tokens trained on by then, by the evaluation or else by the records of training."""
    if evaluation.tokens is not None:
        return float(evaluation.tokens)
    known = by_step(run, "train", "tokens")
    return float(np.interp(evaluation.step or 0, [0.0, *known.x], [0.0, *known.y]))


def tables_by_checkpoint(
    evaluations: Sequence[Evaluation], differences: Iterable[EvaluationDifferences]
) -> list[Table]:
    """Return a table for each text and task with a row for each checkpoint of each run, and for its differences."""
    names = _names([each.run for each in evaluations])
    places = {(each.run, each.step): (each.step or 0, finite(each.tokens)) for each in evaluations}
    asked = [
        (Question(on), names[each.run], places[each.run, each.step], scores)
        for each in evaluations
        for on, scores in each.scores.items()
    ]
    for each in differences:
        found: dict[str, dict[str, Score]] = {}
        for entry in each.differences:
            scores = found.setdefault(f"{entry.on}, differences", {})
            if entry.metric is not None:  # the questions differ
                scores[entry.metric] = Score(value=entry.value, stderr=entry.stderr)
        pair, at = f"{names[each.run]} minus {names[each.baseline]}", places[each.run, each.step]
        asked += [(Question(on), pair, at, scores) for on, scores in found.items()]
    return [_course_table(*each) for each in _courses(asked).items()]


def newest_tables(named: Mapping[str, Run]) -> list[Table]:
    """Return the newest scores of each run, and differences where two answered the same questions of a task."""
    joined = _joined({name: [own for each in run.evaluations for own in answers(each)] for name, run in named.items()})
    if not joined:
        return []
    pairs: dict[tuple[str, str], list[Difference]] = {}
    for question, own in joined.items():
        (first, before), *others = own.items()
        for other, after in others:
            if before.items and after.items and before.items.items.keys() == after.items.items.keys():
                found = paired_answers(question.name, before.items, after.items)
                pairs.setdefault((other, first), []).extend(found)
    scores = _side_by_side("The newest checkpoint that was evaluated", list(named), joined)
    return [scores, *(difference_table(*names, own) for names, own in pairs.items() if own)]
