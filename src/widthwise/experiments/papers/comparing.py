"""An item whose numbers a comparison gives."""

from pathlib import Path
from typing import Literal

from widthwise.experiments.compare import read_plan
from widthwise.experiments.experiment import Experiment as Plan
from widthwise.experiments.jobs import Jobs
from widthwise.experiments.papers.experiment import Experiment, MeasuredVariants
from widthwise.experiments.running import run_plan
from widthwise.records.comparison import Comparison
from widthwise.training.observer import Observer


class OfVariants(Experiment):
    """Models of a recipe with a compare section."""

    @property
    def plan(self) -> Plan:
        return read_plan([self.path], self.overrides)

    def train(self, folder: Path, observer: Observer, n_jobs: int | None) -> Plan:
        """Trains the runs of the plan that have not finished. n_jobs: as `run` takes it."""
        plan = self.plan
        run_plan(plan, folder, observer=observer, jobs=Jobs.of(plan.recipes.values(), len(plan.order), n_jobs))
        return plan


class Comparing(OfVariants):
    """A comparison, as it is."""

    tiny_overrides = ("compare.seeds=[1]",)
    kind: Literal["compare"] = "compare"

    @property
    def workload(self) -> str:
        return self.plan.in_words

    def run(self, folder: Path, observer: Observer, n_jobs: int | None) -> list[Path]:
        self.train(folder, observer, n_jobs)
        return [folder]

    def measured(self, folder: Path) -> MeasuredVariants | None:
        if not (folder / Comparison.file_name).is_file():
            return None
        return MeasuredVariants(Comparison.read(folder))
