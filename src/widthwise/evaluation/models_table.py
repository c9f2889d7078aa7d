"""A table with a row for each model and a column for each task: the form of Table 3 of arXiv:2606.18246.

The paper marks an accuracy that is higher at p < 0.05 in a one-sided test, which it does not describe. Here the test is
of pairs: both models have answered the same questions (`one_sided`). It is of the loss where a perplexity is shown,
which is its exponential.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True)
class _Column:
    """A column of the table, and the place of its numbers in an evaluation."""

    shown: TableColumn
    part: str
    """Key of an evaluation: texts, tasks, lm_eval, or suite."""
    key: str
    """Name of the text or task there."""
    on: str | None
    """Name of its answers among differences."""

    def score(self, evaluation: Evaluation) -> Mapping[str, Any]:
        """Return its value and stderr; empty if the model was not asked."""
        if self.part == "suite":
            suite = evaluation["suite"]
            if self.key == AVERAGE:
                return suite["average"] or {}
            return next(row for row in suite["rows"] if row["name"] == self.key)
        found = evaluation[self.part].get(self.key, {})
        return (found if self.part == "lm_eval" else found.get("metrics", {})).get(self.shown.metric, {})


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
    score, metric = column.score(evaluation), column.shown.metric
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
            yield from _task_columns("tasks", name, name, task["metrics"], "file", task["n_items"])
    for name, metrics in first["lm_eval"].items():
        if harness_answers(name) not in of_suite:
            items = first["lm_eval_items"].get(name, {}).get("items", {})
            n_items = len(next(iter(items.values()), ())) or None
            yield from _task_columns("lm_eval", name, harness_answers(name), metrics, HARNESS, n_items)
    has_one_tokenizer = len({each["tokenizer"] for each in evaluations}) == 1
    metric = "token_perplexity" if has_one_tokenizer else "byte_perplexity"
    files = [Path(name).name for name in first["texts"]]
    for name, file in zip(first["texts"], files):
        shown = name if files.count(file) > 1 else file
        yield _Column(TableColumn(name=shown, metric=metric, is_share=False, source="text"), "texts", name, name)


def _suite_columns(evaluation: Evaluation) -> Iterator[_Column]:
    suite = evaluation["suite"]
    averaged = [] if suite["average"] is None else [*suite["average"]["tasks"], *suite["average"]["missing"]]
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
        yield _Column(shown, "suite", row["name"], row["answers"] or MEAN_OVER_TEXTS)
        is_last = row["name"] in averaged and not any(each["name"] in averaged for each in suite["rows"][i + 1 :])
        if is_last:
            source = f"{suite['average']['n_tasks']} of {suite['average']['n_tasks_of_suite']} tasks"
            mean = TableColumn(name=AVERAGE, metric="average", is_share=True, source=source)
            yield _Column(mean, "suite", AVERAGE, suite["name"])


def _task_columns(
    part: str, name: str, on: str, metrics: Mapping[str, Any], source: str, n_items: int | None
) -> Iterator[_Column]:
    """Yield its normalised accuracy, or else its first share, and its perplexities."""
    shares = sorted((metric for metric in metrics if metric.partition(",")[0] in UNITS), key=lambda m: m != "acc_norm")
    for metric in [*shares[:1], *(each for each in PERPLEXITIES if each in metrics)]:
        shown = TableColumn(name=name, metric=metric, is_share=is_share(metric), source=source, n_items=n_items)
        yield _Column(shown, part, name, on)
