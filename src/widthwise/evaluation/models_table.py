"""A table with a row for each model and a column for each task, as Table 3 of arXiv:2606.18246.

The paper marks an accuracy that is higher at p < 0.05 in a one-sided test, which it does not describe. Here the test is
two-sided and paired: both models answered the same questions. For a perplexity the loss is tested, its logarithm.
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
"""Shown metric -> the metric that is tested; default: the same."""
SHARES = ("acc", "acc_norm", "exact_match", "f1", "pass@1", "pass_at_1")
"""Metrics from 0 to 1; a filter of lm-evaluation-harness may follow a comma."""
PERPLEXITIES = ("perplexity", "word_perplexity")
HARNESS = "lm-evaluation-harness"


Column = tuple[TableColumn, str]
"""A column of the table, and the name of its answers in an evaluation and among differences."""


def is_share(metric: str) -> bool:
    """Return True for one of SHARES, for which higher is better; all other metrics are losses."""
    return metric.partition(",")[0] in SHARES


def models_table(
    evaluations: Sequence[Evaluation], differences: Sequence[EvaluationDifferences], command: str
) -> EvaluationTable:
    """Return the table, shares before losses, with empty cells for missing answers.

    Models have the names of their folders if these are unique, otherwise paths with steps. evaluations: one for each
    row, all of the same request; differences: from `all_differences`; command: reproduces the table.
    """
    columns = sorted(_columns(evaluations), key=lambda column: not column[0].is_share)
    names = {(evaluation.run, evaluation.step): Path(evaluation.run).name for evaluation in evaluations}
    if len(set(names.values())) < len(evaluations):
        names = {(run, step): run if step is None else f"{run}, step {step}" for run, step in names}
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


def _cell(
    column: TableColumn, on: str, evaluation: Evaluation, entries: Mapping[tuple[str, str | None], Difference]
) -> TableCell:
    metric = column.metric
    score = evaluation.scores.get(on, {}).get(metric, Score(value=None))
    difference = entries.get((on, metric))
    tested = entries.get((on, TESTED.get(metric, metric)))
    is_better = None
    if tested is not None and tested.p_value is not None:
        is_better = (finite(tested.value) > 0) == column.is_share
    return TableCell(
        value=score.value,
        stderr=score.stderr,
        difference=difference and difference.value,
        low=difference and difference.low,
        high=difference and difference.high,
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
    tokenizers = {evaluation.tokenizer for evaluation in evaluations}
    metric = "token_perplexity" if len(tokenizers) == 1 else "byte_perplexity"
    files = [Path(name).name for name in first.texts]
    for name, file in zip(first.texts, files):
        shown = name if files.count(file) > 1 else file
        n_blocks = first.texts[name].n_blocks
        yield TableColumn(name=shown, metric=metric, is_share=False, source="text", n_blocks=n_blocks), name


def _task_columns(name: str, on: str, metrics: Scores, source: str, n_items: int | None) -> Iterator[Column]:
    """Yield columns for the normalised accuracy, or else the first share, and for perplexities."""
    shares = sorted(filter(is_share, metrics), key=lambda metric: metric != "acc_norm")
    for metric in [*shares[:1], *(name for name in PERPLEXITIES if name in metrics)]:
        shown = TableColumn(name=name, metric=metric, is_share=is_share(metric), source=source, n_items=n_items)
        yield shown, on
