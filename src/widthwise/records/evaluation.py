"""Scores of checkpoints: `evaluations/step_STEP-REQUEST.json` of one, `evaluation_table.json` of several."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pydantic

from widthwise.config_io import parse
from widthwise.records.record import Known, Record, SealedFile, StoredRecord

MEAN_OVER_TEXTS = "mean over texts"
"""Name of the means over texts among scores and differences."""


def harness_answers(task: str) -> str:
    """Return the name of a task of lm-evaluation-harness there."""
    return f"lm-eval {task}"


class Score(Record):
    """A number with its standard error, where there is one."""

    value: Known
    stderr: Known = None


Scores = Mapping[str, Score]
"""Name of a metric -> its score."""


class TaskResult(Record):
    """The scores on a task."""

    n_items: int
    chance: Known = None
    """The accuracy of guessing at random."""
    n_cut_contexts: int = 0
    """Contexts that were too long for a window and lost their beginning."""
    metrics: Scores


class ItemAnswers(Record):
    """The answers to the questions of a task one by one, by which two models are paired."""

    fingerprint: str
    """A hash of the questions: answers with equal ones are to the same questions."""
    items: Mapping[str, Sequence[Known]] = {}
    """Name of a metric of the task -> its value for each question."""


class TaskAnswers(TaskResult, ItemAnswers):
    """The scores on a task and on every question."""

    delimiter: str = " "
    """The text between question and answer."""


class TextAnswers(Record):
    """The metrics of a text; `blocks` allow pairing two models."""

    n_documents: int
    n_blocks: int
    n_tokens: int
    n_bytes: int
    n_characters: int
    n_words: int
    metrics: Scores
    fingerprint: str
    """A hash of the text, equal for equal blocks."""
    blocks: Mapping[str, Sequence[float]]
    """`nats` and the counts above -> their sum in each block."""


class TextMeans(Record):
    """Means over several texts, in which each counts the same."""

    metrics: Scores


class Evaluation(Record):
    """The answers of a checkpoint, or of a Hugging Face folder, to texts and tasks, with every block and item."""

    run: str = ""
    """Path of the run or folder."""
    step: int | None = pydantic.Field(ge=0)
    """None for a Hugging Face folder."""
    tokens: int | None = None
    """Tokens trained on by then; None for a Hugging Face folder."""
    request: Mapping[str, Any]
    tokenizer: str = ""
    max_length: int
    stride: int
    precision: str
    texts: Mapping[str, TextAnswers] = {}
    text_means: TextMeans | None = None
    """None for fewer than two texts."""
    bits_per_byte: Known = None
    """That of the text, or the mean over several; None where none was read."""
    tasks: Mapping[str, TaskAnswers] = {}
    lm_eval: Mapping[str, Scores] = {}
    """Task or group of tasks of lm-evaluation-harness -> its scores."""
    lm_eval_items: Mapping[str, ItemAnswers] = {}
    damages: Sequence[str] = ()
    """Damaged checkpoints that were passed over."""
    environment: Mapping[str, Any] = {}

    @classmethod
    def read_all(cls, run: Path, steps: str = "*") -> list["Evaluation"]:
        """Read the evaluations of a run by step, of one step by name. Raises UserError for a broken file.

        steps: pattern of the steps, which have eight digits.
        """
        paths = sorted(run.glob(f"evaluations/step_{steps}-*.json"))
        evaluations = [parse(cls, SealedFile(path).read(), str(path)) for path in paths]
        return sorted(evaluations, key=lambda evaluation: evaluation.step or 0)

    @property
    def scores(self) -> Mapping[str, Scores]:
        """Text, task or mean over texts -> its scores, by its name among differences."""
        found = {name: each.metrics for part in (self.texts, self.tasks) for name, each in part.items()}
        found |= {harness_answers(name): metrics for name, metrics in self.lm_eval.items()}
        if self.text_means is not None:
            found[MEAN_OVER_TEXTS] = self.text_means.metrics
        return found

    def totals(self) -> dict[str, Any]:
        """Return the evaluation as plain data without its blocks and items."""
        every = {"texts": {"__all__": {"blocks"}}, "tasks": {"__all__": {"items"}}, "lm_eval_items": True}
        return {**self.model_dump(exclude_unset=True, exclude=every), "lm_eval_items": {}}


class Flips(Record):
    """The items that only one of two models has right."""

    gained: Sequence[int]
    """Numbers, from 1, of the items that only the other has right."""
    lost: Sequence[int]
    """Numbers of those that only the baseline has right."""
    p_value: float
    """Two-sided, of McNemar's exact test that both are equally frequent (1947, Psychometrika 12)."""


class Difference(Record):
    """An evaluation minus its baseline on one metric, block by block or item by item."""

    on: str
    """Text, task or mean."""
    metric: str | None
    """None if the texts or questions differ, so that no number is known."""
    value: Known = None
    stderr: Known = None
    low: Known = None
    high: Known = None
    p_value: Known = None
    """Two-sided p of no difference: McNemar's exact test for `flips`, otherwise Student's t; None if undefined."""
    flips: Flips | None = None
    """None for metrics that are not right or wrong."""


class EvaluationDifferences(Record):
    """An evaluation minus its baseline's."""

    run: str
    step: int | None
    baseline: str
    baseline_step: int | None
    differences: Sequence[Difference]


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


class TableCell(Record):
    """The value of a model, and its difference to its baseline's."""

    value: Known
    stderr: Known = None
    difference: Known = None
    """It minus the baseline's; None of a baseline, and where the questions differ."""
    p_value: Known = None
    """Two-sided p of no difference to the baseline, from pairs; None if these are unknown."""
    is_better: bool | None = None
    """True if the tested difference favours it; None without a test."""


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
