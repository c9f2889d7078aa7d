"""An item whose numbers are what trained models know of texts and tasks."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import PositiveInt

from widthwise.data.config import open_data
from widthwise.evaluation.differences import all_differences
from widthwise.evaluation.models_table import models_table
from widthwise.experiments.papers.analysing import MODELS
from widthwise.experiments.papers.comparing import OfVariants
from widthwise.experiments.papers.experiment import Measured
from widthwise.experiments.papers.questions import CONTINUATIONS, LAST_WORDS, TEXT, write_questions
from widthwise.experiments.plan import ComparisonPlan
from widthwise.experiments.statistics import seed_interval
from widthwise.files import write_atomic
from widthwise.records.estimate import Estimate
from widthwise.records.evaluation import EvaluationTable
from widthwise.records.record import finite
from widthwise.runs.analysed_text import held_out_text
from widthwise.runs.environment import command_line
from widthwise.runs.evaluate import EvaluationConfig, evaluate_run
from widthwise.training.observer import Observer

QUANTITIES: Mapping[str, tuple[str, str, float]] = {
    "continuation_accuracy": (CONTINUATIONS, "acc_norm", 100.0),
    "last_word_accuracy": (LAST_WORDS, "acc", 100.0),
    "last_word_perplexity": (LAST_WORDS, "perplexity", 1.0),
    "held_out_perplexity": (TEXT, "token_perplexity", 1.0),
}
"""Quantity -> name and metric of a column, and what it is multiplied by: accuracies are in percent, as printed."""


class Evaluating(OfVariants):
    """A recipe with a compare section, whose models read held-out text and answer questions made from it.

    Those of a seed are compared with the baseline's of the same seed.
    """

    kind: Literal["evaluation"] = "evaluation"
    tiny_overrides: ClassVar = ("compare.seeds=[1, 2]",)
    n_items: PositiveInt = 400
    """Questions of each kind."""
    n_text_bytes: PositiveInt = 200_000
    """Held-out text that is read."""

    @property
    def tiny(self) -> Self:
        return super().tiny.model_copy(update={"n_items": 6, "n_text_bytes": 2000})

    @property
    def workload(self) -> str:
        return f"{self.plan.workload}; each evaluated on up to {2 * self.n_items:,} questions"

    def run(self, folder: Path, observer: Observer, n_jobs: int | None) -> list[Path]:
        models = folder / MODELS
        plan = self.train(models, observer, n_jobs)
        asked = self._asked(plan, folder, observer)
        paths = {key: str(models / plan.run_path(*key)) for key in plan.runs.values()}
        evaluations = [evaluate_run(path, asked, observer.message) for path in paths.values()]
        beside = {path: paths[plan.baseline, seed] for (name, seed), path in paths.items() if name != plan.baseline}
        differences = all_differences(evaluations, beside, by_step=False)
        models_table(evaluations, differences, command_line()).write(folder)
        return [models, folder]

    def _asked(self, plan: ComparisonPlan, folder: Path, observer: Observer) -> EvaluationConfig:
        """Writes text and questions, from the documents that no run has been trained on."""
        data = open_data(plan.recipes[plan.baseline].data, observer.preparing)
        documents = [document.text for document in held_out_text(data)]
        text = "\n".join(documents).encode()[: self.n_text_bytes].decode(errors="ignore")
        write_atomic(folder / TEXT, text)
        files = write_questions(documents, self.n_items, folder)
        return EvaluationConfig(texts=(str(folder / TEXT),), task_files=tuple(map(str, files)))

    def measured(self, folder: Path) -> "MeasuredAnswers | None":
        if not (folder / EvaluationTable.file_name).is_file():
            return None
        return MeasuredAnswers(EvaluationTable.read(folder))


class MeasuredAnswers(Measured):
    """Its quantities are those of QUANTITIES."""

    def __init__(self, table: EvaluationTable):
        """Its rows are called after runs, `x-seed1`."""
        self._columns = [(column.name, column.metric) for column in table.columns]
        self._cells: dict[str, list[list[float]]] = {}
        for row in table.rows:
            name, _, _ = row.name.rpartition("-seed")
            self._cells.setdefault(name, []).append([finite(cell.value) for cell in row.cells])

    def value(self, name: str, quantity: str) -> Estimate | None:
        if name not in self._cells or quantity not in QUANTITIES:
            return None
        *place, scale = QUANTITIES[quantity]
        values = [scale * cells[self._columns.index((place[0], place[1]))] for cells in self._cells[name]]
        return seed_interval(values) if np.isfinite(values).all() else None

    @property
    def models(self) -> Mapping[str, float]:
        return {}

    @property
    def n_seeds(self) -> int:
        return min(map(len, self._cells.values()))
