"""A table with a row for each model and a column for each task: the form of Table 3 of arXiv:2606.18246.

The paper marks an accuracy that is higher at p < 0.05 in a one-sided test, which it does not describe. Here the test is
two-sided, and of pairs: both models have answered the same questions. It is of the loss where a perplexity is shown,
which is its exponential.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from widthwise.records.evaluation import (
    Difference,
    Evaluation,
    EvaluationDifferences,
    EvaluationTable,
    Score,
    Scores,
    TableCell,
    TableColumn,
    TableRow,
    harness_answers,
)
from widthwise.records.record import finite

SIGNIFICANCE = 0.05
TESTED = {"perplexity": "nats", "token_perplexity": "nats_per_token", "byte_perplexity": "bits_per_byte"}
"""Shown metric -> the metric whose pairs are tested; default: itself."""
SHARES = ("acc", "acc_norm", "exact_match", "f1", "pass@1", "pass_at_1")
"""Metrics from 0 to 1; a filter of lm-evaluation-harness may follow a comma."""
PERPLEXITIES = ("perplexity", "word_perplexity")
HARNESS = "lm-evaluation-harness"


Column = tuple[TableColumn, str]
"""A column of the table, and the name of its answers in an evaluation and among differences."""


def is_share(metric: str) -> bool:
    """Return True for one of SHARES, where higher is better; all other metrics are losses."""
    return metric.partition(",")[0] in SHARES


def models_table(
    evaluations: Sequence[Evaluation], differences: Sequence[EvaluationDifferences], command: str
) -> EvaluationTable:
    """Return the table, shares before losses, with empty cells for missing answers.

    evaluations: one for each row, all of the same request; differences: from `all_differences`; command: reproduces the
    table.
    """
    columns = sorted(_columns(evaluations), key=lambda column: not column[0].is_share)
    names = {(each.run, each.step): name for each, name in zip(evaluations, _names(evaluations))}
    by_model = {(pair.run, pair.step): pair for pair in differences}
    rows = []
    for evaluation in evaluations:
        model = (evaluation.run, evaluation.step)
        pair = by_model.get(model)
        entries = {} if pair is None else {(entry.on, entry.metric): entry for entry in pair.differences}
        rows.append(
            TableRow(
                name=names[model],
                run=evaluation.run,
                step=evaluation.step,
                baseline=None if pair is None else names[pair.baseline, pair.baseline_step],
                cells=[_cell(*column, evaluation, entries) for column in columns],
            )
        )
    return EvaluationTable(
        title="Evaluation",
        command=command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        significance=SIGNIFICANCE,
        columns=[column for column, _ in columns],
        rows=rows,
    )


def _names(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return the names of the folders if these are unique, otherwise paths with steps."""
    names = [Path(each.run).name for each in evaluations]
    if len(set(names)) == len(names):
        return names
    return [each.run + ("" if each.step is None else f", step {each.step}") for each in evaluations]


def _cell(
    column: TableColumn, on: str, evaluation: Evaluation, entries: Mapping[tuple[str, str | None], Difference]
) -> TableCell:
    metric = column.metric
    score = evaluation.scores.get(on, {}).get(metric, Score(value=None))
    shown = entries.get((on, metric))
    tested = entries.get((on, TESTED.get(metric, metric)))
    is_better = None
    if tested is not None and tested.p_value is not None:
        is_better = (finite(tested.value) > 0) == column.is_share
    return TableCell(
        value=score.value,
        stderr=score.stderr,
        difference=shown and shown.value,
        p_value=tested and tested.p_value,
        is_better=is_better,
    )


def _columns(evaluations: Sequence[Evaluation]) -> Iterator[Column]:
    """Yield the columns of tasks, then of texts."""
    first = evaluations[0]
    for name, task in first.tasks.items():
        yield from _task_columns(name, name, task.metrics, "file", task.n_items)
    for name, metrics in first.lm_eval.items():
        pairs = first.lm_eval_items.get(name)
        n_items = len(next(iter(pairs.items.values()), ())) if pairs else 0
        yield from _task_columns(name, harness_answers(name), metrics, HARNESS, n_items or None)
    has_one_tokenizer = len({each.tokenizer for each in evaluations}) == 1
    metric = "token_perplexity" if has_one_tokenizer else "byte_perplexity"
    files = [Path(name).name for name in first.texts]
    for name, file in zip(first.texts, files):
        shown = name if files.count(file) > 1 else file
        yield TableColumn(name=shown, metric=metric, is_share=False, source="text"), name


def _task_columns(name: str, on: str, metrics: Scores, source: str, n_items: int | None) -> Iterator[Column]:
    """Yield its normalised accuracy, or else its first share, and its perplexities."""
    shares = sorted(filter(is_share, metrics), key=lambda metric: metric != "acc_norm")
    for metric in [*shares[:1], *(each for each in PERPLEXITIES if each in metrics)]:
        shown = TableColumn(name=name, metric=metric, is_share=is_share(metric), source=source, n_items=n_items)
        yield shown, on
