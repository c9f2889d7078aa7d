"""Scores of checkpoints on texts and tasks, for page and terminal: side by side, over training, and differences."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from widthwise.evaluation.differences import is_share
from widthwise.evaluation.estimate import FEWEST_BLOCKS
from widthwise.evaluation.perplexity import BLOCK_BYTES
from widthwise.records.estimate import CONFIDENCE
from widthwise.records.evaluation import Evaluation, EvaluationDifferences, Score, Scores, TaskResult, harness_name
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
"""Metrics with a figure. Other metrics are functions of these and are in tables only."""

FLIPS_NOTE = "gained, lost: items that only this run or only the baseline has right; p: exact test of McNemar"


class Question(NamedTuple):
    """A text or a task with its options. Scores on equal questions share a row or a line."""

    name: str
    options: tuple[tuple[str, object], ...] = ()

    def title(self, questions: "Iterable[Question]") -> str:
        """Return the name, with the options that differ between questions of this name."""
        namesakes = [dict(question.options) for question in questions if question.name == self.name]
        differing = [
            f"{key} {str(value)[:8]}"
            for key, value in self.options
            if any(options.get(key) != value for options in namesakes)
        ]
        return _tail(self.name) + (f" ({', '.join(differing)})" if differing else "")


class Answers(NamedTuple):
    """The scores of a checkpoint on a question."""

    metrics: Scores
    remarks: Sequence[str] = ()


ByCheckpoint = Mapping[str, Mapping[tuple[int, float], Scores]]
"""Run -> step and tokens of a checkpoint -> scores on one text or task."""


def score_cell(metric: str, score: Score | None) -> str:
    """Return a value, in percent for shares, with its standard error, if known, below it."""
    if score is None or score.value is None:
        return MISSING
    scale, unit, n_decimals = _unit(metric)
    error = "" if score.stderr is None else f"\n± {fixed(scale * score.stderr, n_decimals)}{unit}"
    return fixed(scale * score.value, n_decimals) + unit + error


def _unit(metric: str) -> tuple[float, str, int]:
    """Return the scale, unit and decimals of a metric."""
    return (100.0, "%", 2) if is_share(metric) else (1.0, "", 4)


def _metrics(every_scores: Iterable[Scores]) -> list[str]:
    return list(dict.fromkeys(metric for scores in every_scores for metric in scores))


def _tail(name: str) -> str:
    """Return the end of a long name, because the end of a path distinguishes it best."""
    name = clean(name)
    return name if len(name) <= NAME_LETTERS else "…" + name[1 - NAME_LETTERS :]


def answers(evaluation: Evaluation) -> Iterator[tuple[Question, Answers]]:
    """Yield the questions of an evaluation with their answers."""

    def question(name: str, **options: object) -> Question:
        options |= {"max_length": evaluation.max_length, "precision": evaluation.precision}
        return Question(clean(name), tuple(sorted(options.items())))

    for name, text in evaluation.texts.items():
        remarks = [f"{text.n_bytes:,} bytes"]
        if text.n_blocks < FEWEST_BLOCKS:
            blocks = counted(text.n_blocks, "block")
            remarks.append(f"{blocks} of {BLOCK_BYTES:,} bytes: too few for a standard error")
        yield question(name, stride=evaluation.stride, text=text.fingerprint), Answers(text.metrics, remarks)
    if evaluation.text_means is not None:
        texts = tuple(text.fingerprint for text in evaluation.texts.values())
        means = question(f"mean over {len(texts)} texts", stride=evaluation.stride, texts=texts)
        yield means, Answers(evaluation.text_means.metrics)
    for name, task in evaluation.tasks.items():
        yield question(name, items=task.fingerprint), _task_answers(task, evaluation.max_length)
    options = {key: evaluation.request.get(key) for key in ("num_fewshot", "limit")}
    for name, scores in evaluation.lm_eval.items():
        yield question(harness_name(name), **options), Answers(scores)


def _task_answers(task: TaskResult, max_length: int | None) -> Answers:
    remarks = [f"{task.n_items:,} items" + (f", chance {fixed(100 * task.chance, 1)}%" if task.chance else "")]
    if task.n_cut_contexts:
        remarks.append(f"{task.n_cut_contexts:,} contexts cut to {max_length or 0:,} tokens")
    return Answers(task.metrics, remarks)


def _side_by_side(caption: str, models: Mapping[str, Iterable[tuple[Question, Answers]]]) -> Table:
    """Return a row for each metric of each question, and a column for each model.

    Answers to equal questions share rows. Of several answers of a model, the last one counts.
    """
    joined: dict[Question, dict[str, Answers]] = {}
    for model, pairs in models.items():
        for question, answer in pairs:
            joined.setdefault(question, {})[model] = answer
    rows = []
    for question, by_model in joined.items():
        name = question.title(joined)
        for metric in _metrics(answer.metrics for answer in by_model.values()):
            scores = [by_model[model].metrics.get(metric) if model in by_model else None for model in models]
            rows.append([name, clean(metric), *(score_cell(metric, score) for score in scores)])
            name = ""
        remarks = dict.fromkeys(remark for answer in by_model.values() for remark in answer.remarks)
        rows += [[f"  {remark}", "", *[""] * len(models)] for remark in remarks]
    return Table(caption, [*NAMES, *map(clean, models)], rows, text_columns=NAMES, sortable=False)


def final_table(results: Mapping[str, RunResult]) -> Table:
    """Return the scores at the end of training on the texts and tasks of the recipes."""
    scored: dict[str, list[tuple[Question, Answers]]] = {name: [] for name in results}
    for name, result in results.items():
        for text_name, text in (result.val_texts or {}).items():
            numbers = {"loss": text.loss, "perplexity": text.perplexity, "bits_per_byte": text.bits_per_byte}
            scores = {metric: Score(value=value) for metric, value in numbers.items()}
            scored[name].append((Question(text_name), Answers(scores)))
        for task_name, task in (result.val_tasks or {}).items():
            scored[name].append((Question(task_name), _task_answers(task, result.cost.seq_len)))
    return _side_by_side("Texts and tasks at the end of training", scored)


def evaluation_tables(
    evaluations: Sequence[Evaluation], differences: Iterable[EvaluationDifferences] = ()
) -> list[Table]:
    """Return a table of the scores of models on the same questions, and tables of differences."""
    names = _names([evaluation.run for evaluation in evaluations])
    if len(evaluations) == 1 and evaluations[0].step is not None:
        names = {run: f"{name}, step {evaluations[0].step}" for run, name in names.items()}
    # All evaluations have the same request, so options are omitted.
    scored = {
        names[evaluation.run]: [(Question(question.name), answer) for question, answer in answers(evaluation)]
        for evaluation in evaluations
    }
    tables = [_side_by_side("Side by side" if len(scored) > 1 else "Scores", scored)]
    return tables + [difference_table(pair) for pair in differences]


def _names(paths: Sequence[str]) -> dict[str, str]:
    """Return path -> unique name: the name of the folder, else the end of the path, else the whole path."""
    for short in (lambda path: clean(Path(path).name), _tail):
        names = {path: short(path) for path in paths}
        if len(set(names.values())) == len(names):
            return names
    return {path: clean(path) for path in paths}


def difference_table(pair: EvaluationDifferences) -> Table:
    """Return the differences of a model from its baseline, with intervals and numbers of flipped items."""
    header = [*NAMES, "difference", f"{percentage(CONFIDENCE)} interval"]
    rows: list[list[str]] = []
    previous = None
    definition = ""
    for difference in pair.differences:
        row = ["" if difference.on == previous else _tail(difference.on)]
        rows.append(row)
        previous = difference.on
        if difference.metric is None:
            row.append("other text or questions")
            continue
        scale, unit, n_decimals = _unit(difference.metric)
        value, low, high = (
            MISSING if number is None else signed(scale * number, n_decimals) + unit
            for number in (difference.value, difference.low, difference.high)
        )
        row += [difference.metric, value, "" if difference.low is None else f"{low} to {high}"]
        if (flips := difference.flips) is not None:
            definition = FLIPS_NOTE
            row += [f"{len(flips.gained):,}", f"{len(flips.lost):,}", fixed(flips.p_value, 3)]
    if definition:
        header += ["gained", "lost", "p"]
    title = f"{_tail(pair.run)} minus {_tail(pair.baseline)}, item by item"
    return Table(title, header, rows, text_columns=NAMES, sortable=False, note=definition)


def _over_training(
    scored: Iterable[tuple[Question, str, tuple[int, float], Scores]], n_fewest: int = 1
) -> dict[str, ByCheckpoint]:
    """Return the title of a text or task -> scores by run and checkpoint.

    scored: question, run, step and tokens, scores. n_fewest: texts and tasks without a run that was scored at this many
    checkpoints are omitted.
    """
    by_question: dict[Question, dict[str, dict[tuple[int, float], Scores]]] = {}
    for question, run, checkpoint, scores in scored:
        by_question.setdefault(question, {}).setdefault(run, {})[checkpoint] = scores
    by_question = {
        question: by_run for question, by_run in by_question.items() if max(map(len, by_run.values())) >= n_fewest
    }
    return {
        question.title(by_question): {run: dict(sorted(checkpoints.items())) for run, checkpoints in by_run.items()}
        for question, by_run in by_question.items()
    }


def _checkpoint_table(title: str, by_run: ByCheckpoint) -> Table:
    """Return a row for each checkpoint of each run."""
    metrics = _metrics(scores for checkpoints in by_run.values() for scores in checkpoints.values())
    rows = []
    for run, checkpoints in by_run.items():
        for (step, tokens), scores in checkpoints.items():
            row = [clean(run), f"{step:,}", MISSING if np.isnan(tokens) else si(tokens)]
            rows.append(row + [score_cell(metric, scores.get(metric)) for metric in metrics])
    return Table(f"{title}, by checkpoint", ["Run", "step", "tokens", *metrics], rows)


def parts_over_training(named: Mapping[str, Run], looks: Looks) -> list[Part | None]:
    """Return curves and tables of the texts and tasks with scores at two or more checkpoints of a run."""
    scored = []
    for name, run in named.items():
        trained = by_step(run, "train", "tokens")
        for evaluation in run.evaluations:
            tokens = evaluation.tokens
            if tokens is None:
                tokens = np.interp(evaluation.step or 0, [0.0, *trained.x], [0.0, *trained.y])
            checkpoint = (evaluation.step or 0, float(tokens))
            scored += [(question, name, checkpoint, answer.metrics) for question, answer in answers(evaluation)]
    by_title = _over_training(scored, n_fewest=2)
    figures: list[Figure | None] = []
    for i, (title, by_run) in enumerate(by_title.items()):
        for metric in _metrics(scores for checkpoints in by_run.values() for scores in checkpoints.values()):
            if metric in DRAWN:
                curves = {}
                for run, checkpoints in by_run.items():
                    values = [scores[metric].value if metric in scores else None for scores in checkpoints.values()]
                    tokens = np.array([tokens for _, tokens in checkpoints])
                    curves[run] = Curve(tokens, np.array([finite(value) for value in values]))
                label = f"{metric} of {shorten(title, 50)}"
                figure = curve_figure(f"evaluation-{i}-{metric}", f"{title}: {metric}", curves, looks, "tokens", label)
                figures.append(figure)
    return [note("evaluations"), *figures, *(_checkpoint_table(*item).folded for item in by_title.items())]


def tables_by_checkpoint(
    evaluations: Sequence[Evaluation], differences: Iterable[EvaluationDifferences]
) -> list[Table]:
    """Return a table for each text and task, and for its differences, with a row for each checkpoint of each run."""
    names = _names([evaluation.run for evaluation in evaluations])
    checkpoints: dict[tuple[str, int | None], tuple[int, float]] = {}
    scored: list[tuple[Question, str, tuple[int, float], Scores]] = []
    for evaluation in evaluations:
        checkpoint = (evaluation.step or 0, finite(evaluation.tokens))
        checkpoints[evaluation.run, evaluation.step] = checkpoint
        name = names[evaluation.run]
        scored += [(Question(on), name, checkpoint, scores) for on, scores in evaluation.scores.items()]
    for pair in differences:
        by_question: dict[str, dict[str, Score]] = {}
        for difference in pair.differences:
            scores = by_question.setdefault(f"{difference.on}, differences", {})
            if difference.metric is not None:  # None if the questions differ
                scores[difference.metric] = Score(value=difference.value, stderr=difference.stderr)
        name = f"{names[pair.run]} minus {names[pair.baseline]}"
        checkpoint = checkpoints[pair.run, pair.step]
        scored += [(Question(on), name, checkpoint, scores) for on, scores in by_question.items()]
    return [_checkpoint_table(*item) for item in _over_training(scored).items()]


def newest_table(named: Mapping[str, Run]) -> Table:
    """Return the newest scores of each run."""
    scored = {name: chain.from_iterable(map(answers, run.evaluations)) for name, run in named.items()}
    return _side_by_side("The newest checkpoint that was evaluated", scored)
