"""A table with a row for each model and a column for each task: the form of Table 3 of arXiv:2606.18246.

The paper marks an accuracy that is higher at p < 0.05 in a one-sided test, which it does not describe. Here the test is
of pairs: both models have answered the same questions (`one_sided`). It is of the loss where a perplexity is shown,
which is its exponential.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from widthwise.evaluation.differences import MEAN_OVER_TEXTS
from widthwise.evaluation.paper_tasks import UNITS, harness_answers, is_share
from widthwise.records.evaluation import EvaluationTable, TableCell, TableColumn, TableRow

SIGNIFICANCE = 0.05
TESTED = {"perplexity": "nats", "token_perplexity": "nats_per_token", "byte_perplexity": "bits_per_byte"}
"""Shown metric -> the metric whose pairs are tested; default: itself."""
PERPLEXITIES = ("perplexity", "word_perplexity")
AVERAGE = "Avg."
HARNESS = "lm-evaluation-harness"

Evaluation = Mapping[str, Any]
"""A record of `runs.evaluate.evaluate_run`."""


class _Column(NamedTuple):
    """A column of the table, and the place of its numbers in an evaluation."""

    shown: TableColumn
    on: str | None
    """Name of its answers among differences."""
    scores: Callable[[Evaluation], Mapping[str, Mapping[str, Any]]]
    """Returns metric -> value and stderr; empty if the model was not asked."""


def models_table(
    evaluations: Sequence[Evaluation], differences: Sequence[Mapping[str, Any]], command: str
) -> EvaluationTable:
    """Return the table, shares before losses, with empty cells for missing answers.

    evaluations: one for each row, all of the same request; differences: from `all_differences`; command: reproduces the
    table.
    """
    columns = sorted(_columns(evaluations), key=lambda column: not column.shown.is_share)
    names = dict(zip(map(_key, evaluations), _names(evaluations)))
    beside = {(each["run"], each["step"]): each for each in differences}
    rows = []
    for evaluation in evaluations:
        found = beside.get(_key(evaluation))
        entries = {(each["on"], each["metric"]): each for each in found["differences"]} if found else {}
        rows.append(
            TableRow(
                name=names[_key(evaluation)],
                run=evaluation["run"],
                step=evaluation["step"],
                baseline=None if found is None else names[found["baseline"], found["baseline_step"]],
                cells=[_cell(column, evaluation, entries) for column in columns],
            )
        )
    suite = evaluations[0]["suite"]
    return EvaluationTable(
        title="Evaluation" if suite is None else f"Evaluation, suite {suite['name']}",
        command=command,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        significance=SIGNIFICANCE,
        columns=[column.shown for column in columns],
        rows=rows,
        remarks=[] if suite is None else [f"without {part}" for part in suite["missing"]],
    )


def _key(evaluation: Evaluation) -> tuple[str, int | None]:
    return evaluation["run"], evaluation["step"]


def _names(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return the names of the folders if these are unique, otherwise paths with steps."""
    names = [Path(each["run"]).name for each in evaluations]
    if len(set(names)) == len(names):
        return names
    return [each["run"] + ("" if each["step"] is None else f", step {each['step']}") for each in evaluations]


def _cell(column: _Column, evaluation: Evaluation, entries: Mapping[tuple[str | None, str], Any]) -> TableCell:
    metric = column.shown.metric
    score = column.scores(evaluation).get(metric, {})
    tested = entries.get((column.on, TESTED.get(metric, metric)), {})
    own = entries.get((column.on, metric), {})
    return TableCell(
        value=score.get("value"),
        stderr=score.get("stderr"),
        difference=own.get("value"),
        p_better=tested.get("p_better"),
        p_worse=tested.get("p_worse"),
    )


def _columns(evaluations: Sequence[Evaluation]) -> Iterator[_Column]:
    """Yield the columns of the suite, the average after the averaged tasks; then those of other tasks and texts."""
    first = evaluations[0]
    of_suite: set[str] = set()
    if first["suite"] is not None:
        found = list(_suite_columns(first))
        of_suite = {column.on for column in found if column.on is not None}
        yield from found
    for name, task in first["tasks"].items():
        if name not in of_suite:
            yield from _task_columns(name, name, "file", task["n_items"], first, partial(_metrics, "tasks", name))
    for name in first["lm_eval"]:
        on = harness_answers(name)
        if on not in of_suite:
            items = first["lm_eval_items"].get(name, {}).get("items", {})
            n_items = len(next(iter(items.values()), ())) or None
            yield from _task_columns(
                name, on, HARNESS, n_items, first, lambda each, name=name: each["lm_eval"].get(name, {})
            )
    has_one_tokenizer = len({each["tokenizer"] for each in evaluations}) == 1
    metric = "token_perplexity" if has_one_tokenizer else "byte_perplexity"
    files = [Path(name).name for name in first["texts"]]
    for name, file in zip(first["texts"], files):
        shown = TableColumn(name=name if files.count(file) > 1 else file, metric=metric, is_share=False, source="text")
        yield _Column(shown, name, partial(_metrics, "texts", name))


def _metrics(part: str, name: str, evaluation: Evaluation) -> Mapping[str, Mapping[str, Any]]:
    return evaluation[part].get(name, {}).get("metrics", {})


def _suite_columns(evaluation: Evaluation) -> Iterator[_Column]:
    suite = evaluation["suite"]
    average = suite["average"]
    averaged = [] if average is None else [*average["tasks"], *average["missing"]]
    last = max((i for i, row in enumerate(suite["rows"]) if row["name"] in averaged), default=None)
    n_items = {name: task["n_items"] for name, task in evaluation["tasks"].items()}
    for i, row in enumerate(suite["rows"]):
        shown = TableColumn(
            name=row["name"],
            metric=row["metric"],
            is_share=is_share(row["metric"]),
            source=row["source"],
            n_items=n_items.get(row["answers"]),
            paper_items=row["paper_items"],
        )
        yield _Column(shown, row["answers"] or MEAN_OVER_TEXTS, partial(_of_row, i))
        if i == last:
            source = f"{average['n_tasks']} of {average['n_tasks_of_suite']} tasks"
            mean = TableColumn(name=AVERAGE, metric="average", is_share=True, source=source)
            yield _Column(mean, suite["name"], lambda each: {"average": each["suite"]["average"] or {}})


def _of_row(i: int, evaluation: Evaluation) -> Mapping[str, Mapping[str, Any]]:
    row = evaluation["suite"]["rows"][i]
    return {row["metric"]: row}


def _task_columns(
    name: str,
    on: str,
    source: str,
    n_items: int | None,
    first: Evaluation,
    scores: Callable[[Evaluation], Mapping[str, Mapping[str, Any]]],
) -> Iterator[_Column]:
    """Yield its normalised accuracy, or else its first share, and its perplexities."""
    metrics = scores(first)
    shares = sorted((metric for metric in metrics if metric.partition(",")[0] in UNITS), key=lambda m: m != "acc_norm")
    for metric in [*shares[:1], *(each for each in PERPLEXITIES if each in metrics)]:
        shown = TableColumn(name=name, metric=metric, is_share=is_share(metric), source=source, n_items=n_items)
        yield _Column(shown, on, scores)
