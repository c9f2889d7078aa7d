"""Scores of checkpoints: `evaluations/step_STEP-REQUEST.json` of one, `evaluation_table.json` of several."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pydantic

from widthwise.records.record import Known, Record, StoredRecord


class Score(Record):
    """A metric of a text or a task, with its standard error where there is one."""

    value: Known
    stderr: Known = None


Scores = Mapping[str, Score]
"""Name of a metric -> its score."""


class Answers(Record):
    """The metrics of a text or a task."""

    metrics: Scores
    fingerprint: str
    """A hash of the text, or of the questions of the task: answers with equal ones are to the same questions."""
    items: Mapping[str, Sequence[Known]] = {}
    """Name of a metric of a task -> its value for each question."""


class Evaluation(Record):
    """The scores of a checkpoint on texts and tasks."""

    step: int = pydantic.Field(ge=0)
    tokens: int | None = None
    """Tokens trained on by then; None in files of older versions."""
    request: Mapping[str, Any]
    max_length: int
    stride: int
    precision: str
    texts: Mapping[str, Answers] = {}
    tasks: Mapping[str, Answers] = {}
    lm_eval: Mapping[str, Scores] = {}


class TableColumn(Record):
    """A text or a task, by one of its metrics."""

    name: str
    metric: str
    is_share: bool
    """True for an accuracy or the like, from 0 to 1: the higher, the better. All others are losses."""
    source: str
    """Origin of its questions."""
    n_items: int | None = None
    """Number of questions; None if unknown, and for texts."""
    paper_items: int | None = None
    """Questions of the task, as the paper of the suite counts them."""


class TableCell(Record):
    """The value of a model, and its difference to that of its baseline."""

    value: Known
    stderr: Known = None
    difference: Known = None
    """It minus that of the baseline; None of a baseline, and where the questions differ."""
    p_better: Known = None
    """One-sided p that it is no better than the baseline, from pairs; None where these are not known."""
    p_worse: Known = None
    """One-sided p that it is no worse."""


class TableRow(Record):
    """The answers of one model: a cell for each column of the table."""

    name: str
    run: str
    step: int | None = None
    baseline: str | None = None
    """Name of the row that it is compared with; None of a row that others are compared with."""
    cells: Sequence[TableCell]


class EvaluationTable(StoredRecord):
    """A table of scores, and the command that made it."""

    file_name: ClassVar[str] = "evaluation_table.json"

    title: str
    command: str
    created: str
    significance: float = pydantic.Field(gt=0, lt=1)
    """A p below it marks a difference."""
    columns: Sequence[TableColumn]
    rows: Sequence[TableRow] = pydantic.Field(min_length=1)
    remarks: Sequence[str] = ()
    """Missing parts of a suite, and why."""
