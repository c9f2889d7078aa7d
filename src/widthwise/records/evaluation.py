"""Scores: `evaluations/step_STEP-REQUEST.json` of one checkpoint, `evaluation_table.json` of several models."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pydantic

from widthwise.config_io import parse
from widthwise.records.record import FiniteOrNone, Record, ReportRecord, SealedFile

MEAN_OVER_TEXTS = "mean over texts"
"""Name by which scores and differences list the means over texts."""


def harness_name(task: str) -> str:
    """Return the name by which scores and differences list a task of lm-evaluation-harness."""
    return f"lm-eval {task}"


class Score(Record):
    """A number with its standard error, if known."""

    value: FiniteOrNone
    stderr: FiniteOrNone = None


Scores = Mapping[str, Score]
"""Metric -> score."""


class TaskResult(Record):
    """The scores on a task."""

    n_items: int
    chance: FiniteOrNone = None
    """The accuracy of guessing at random."""
    n_cut_contexts: int = 0
    """Contexts that were cut at the start because they were too long for a window."""
    metrics: Scores


class ItemAnswers(Record):
    """The answers to each question of a task, for paired comparisons of two models."""

    fingerprint: str
    """Hash of the questions; equal for equal questions."""
    items: Mapping[str, Sequence[FiniteOrNone]] = {}
    """Metric of the task -> its value for each question."""


class TaskAnswers(TaskResult, ItemAnswers):
    """The scores on a task and on every question."""

    delimiter: str = " "
    """The text between question and answer."""


class TextScores(Record):
    """The metrics of a text, and sums over its blocks for paired comparisons of two models."""

    n_documents: int
    n_blocks: int
    n_tokens: int
    n_bytes: int
    n_characters: int
    n_words: int
    metrics: Scores
    fingerprint: str
    """Hash of the text; equal for equal blocks."""
    blocks: Mapping[str, Sequence[float]]
    """`nats` and the names of the counts above -> sum in each block."""


class TextMeans(Record):
    """Means over several texts of equal weight."""

    metrics: Scores


class Evaluation(Record):
    """The scores of a checkpoint or a Hugging Face folder on texts and tasks, with every block and item."""

    run: str = ""
    """Path of the run or folder."""
    step: int | None = pydantic.Field(ge=0)
    """None for a Hugging Face folder."""
    tokens: int | None = None
    """Tokens trained on before the checkpoint; None for a Hugging Face folder."""
    request: Mapping[str, Any]
    tokenizer: str = ""
    max_length: int
    stride: int
    precision: str
    texts: Mapping[str, TextScores] = {}
    text_means: TextMeans | None = None
    """None for fewer than two texts."""
    bits_per_byte: FiniteOrNone = None
    """Bits per byte of the text, or the mean over several texts; None without a text."""
    tasks: Mapping[str, TaskAnswers] = {}
    lm_eval: Mapping[str, Scores] = {}
    """Task or group of tasks of lm-evaluation-harness -> scores."""
    lm_eval_items: Mapping[str, ItemAnswers] = {}
    damages: Sequence[str] = ()
    """Damaged checkpoints that were skipped."""
    environment: Mapping[str, Any] = {}

    @classmethod
    def read_all(cls, run: Path, steps: str = "*") -> list["Evaluation"]:
        """Read the evaluations of a run, ordered by step, then by name. Raises UserError for a broken file.

        steps: glob pattern of the steps, which have eight digits.
        """
        paths = sorted(run.glob(f"evaluations/step_{steps}-*.json"))
        evaluations = [parse(cls, SealedFile(path).read(), str(path)) for path in paths]
        return sorted(evaluations, key=lambda evaluation: evaluation.step or 0)

    @property
    def scores(self) -> Mapping[str, Scores]:
        """Name of a text, a task or MEAN_OVER_TEXTS -> scores. Tasks of the harness have their `harness_name`."""
        scores = {name: text.metrics for name, text in self.texts.items()}
        scores |= {name: task.metrics for name, task in self.tasks.items()}
        scores |= {harness_name(name): metrics for name, metrics in self.lm_eval.items()}
        if self.text_means is not None:
            scores[MEAN_OVER_TEXTS] = self.text_means.metrics
        return scores

    def totals(self) -> dict[str, Any]:
        """Return the evaluation as plain data without its blocks and items."""
        exclude = {"texts": {"__all__": {"blocks"}}, "tasks": {"__all__": {"items"}}, "lm_eval_items": True}
        return {**self.model_dump(exclude_unset=True, exclude=exclude), "lm_eval_items": {}}


class Flips(Record):
    """The items that only one of two models has right."""

    gained: Sequence[int]
    """Numbers, from 1, of the items that only the compared model has right."""
    lost: Sequence[int]
    """Numbers of the items that only the baseline has right."""
    p_value: float
    """Two-sided p of McNemar's exact test that gains and losses are equally frequent (1947, Psychometrika 12)."""


class Difference(Record):
    """An evaluation minus its baseline on one metric, paired by block or item."""

    on: str
    """Text, task or mean."""
    metric: str | None
    """None if the texts or questions differ; all numbers are then None."""
    value: FiniteOrNone = None
    stderr: FiniteOrNone = None
    low: FiniteOrNone = None
    high: FiniteOrNone = None
    p_value: FiniteOrNone = None
    """Two-sided p of no difference: McNemar's exact test for `flips`, otherwise Student's t; None if undefined."""
    flips: Flips | None = None
    """None for metrics other than right or wrong."""


class EvaluationDifferences(Record):
    """All differences of an evaluation from its baseline."""

    run: str
    step: int | None
    baseline: str
    baseline_step: int | None
    differences: Sequence[Difference]


class TableColumn(Record):
    """One metric of a text or a task."""

    name: str
    metric: str
    is_share: bool
    """True for accuracies and other shares from 0 to 1, where higher is better; False for losses."""
    source: str
    """Origin of the text or the questions."""
    n_items: int | None = None
    """Number of questions; None if unknown, and for texts."""
    n_blocks: int | None = None
    """Number of blocks of the text; None for tasks."""


class TableCell(Score):
    """The score of a model, and its difference from the baseline's score."""

    difference: FiniteOrNone = None
    """Value minus the baseline's value; None for a baseline, and if the questions differ."""
    low: FiniteOrNone = None
    high: FiniteOrNone = None
    """Ends of the interval of the difference; None if unknown."""
    p_value: FiniteOrNone = None
    """Two-sided p of no difference from the baseline, from pairs; None without pairs."""
    is_better: bool | None = None
    """True if the tested difference favours the model; None without a test."""


class TableRow(Record):
    """The scores of one model: a cell for each column of the table."""

    name: str
    run: str
    step: int | None = None
    baseline: str | None = None
    """Name of the row that this row is compared with; None for a baseline."""
    cells: Sequence[TableCell]


class EvaluationTable(ReportRecord):
    """A table of scores, and the command that made it."""

    file_name: ClassVar[str] = "evaluation_table.json"

    significance: float = pydantic.Field(gt=0, lt=1)
    """Differences with a smaller p are marked."""
    columns: Sequence[TableColumn]
    rows: Sequence[TableRow] = pydantic.Field(min_length=1)
