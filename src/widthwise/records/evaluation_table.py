"""`evaluation_table.json`: what several models know, a row for each model and a column for each text and task."""

from collections.abc import Sequence
from typing import ClassVar, Self

import pydantic

from widthwise.records.record import Known, Record, StoredRecord


class TableColumn(Record):
    """A text or a task, by one of its metrics."""

    name: str
    metric: str
    is_share: bool
    """Whether it is an accuracy or the like, from 0 to 1: the higher, the better. All others are losses."""
    source: str
    """Where its questions come from."""
    n_items: int | None = None
    """Questions that were asked; None where that is not known, and of texts."""
    paper_items: int | None = None
    """Questions of the task, as the paper of the suite counts them."""


class TableCell(Record):
    """The value of a model, and how it stands beside that of its baseline."""

    value: Known
    stderr: Known = None
    difference: Known = None
    """It minus that of the baseline; None of a baseline, and where the questions differ."""
    p_better: Known = None
    """One-sided p that it is no better than the baseline, from pairs; None where these are not known."""
    p_worse: Known = None
    """One-sided p that it is no worse."""


class TableRow(Record):
    """What one model answered: a cell for each column of the table."""

    name: str
    run: str
    step: int | None = None
    baseline: str | None = None
    """Name of the row that it is compared with; None of a row that others are compared with."""
    cells: Sequence[TableCell]
    """One for each column."""


class EvaluationTable(StoredRecord):
    """The table, and how it was made."""

    file_name: ClassVar[str] = "evaluation_table.json"

    title: str
    command: str
    created: str
    significance: float = pydantic.Field(gt=0, lt=1)
    """A p below it marks a difference."""
    columns: Sequence[TableColumn]
    rows: Sequence[TableRow] = pydantic.Field(min_length=1)
    remarks: Sequence[str] = ()
    """What of a suite is missing, and why."""

    @pydantic.model_validator(mode="after")
    def _is_rectangular(self) -> Self:
        names = [row.name for row in self.rows]
        if len(set(names)) < len(names):
            raise ValueError("rows: two have the same name")
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise ValueError(f"rows: {row.name} has {len(row.cells)} cells for {len(self.columns)} columns")
            if row.baseline is not None and row.baseline not in names:
                raise ValueError(f"rows: {row.name} is compared with {row.baseline!r}, which is none of them")
        return self
