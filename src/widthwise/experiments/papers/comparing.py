"""An item whose numbers a comparison gives."""

from pathlib import Path
from typing import Literal

from widthwise.experiments.compare import run_plan
from widthwise.experiments.jobs import Jobs
from widthwise.experiments.papers.experiment import Experiment, MeasuredVariants
from widthwise.experiments.plan import ComparisonPlan, read_plan
from widthwise.records.comparison import Comparison
from widthwise.training.observer import Observer


def run_variants(plan: ComparisonPlan, folder: Path, observer: Observer, n_jobs: int | None) -> None:
    """Trains the runs of a plan that have not finished. n_jobs: how many at a time; None: as many as there is room."""
    run_plan(plan, folder, observer=observer, jobs=Jobs.of(plan.recipes.values(), len(plan.runs), n_jobs))


class Comparing(Experiment):
    """A recipe with a compare section."""

    tiny_overrides = ("compare.seeds=[1]",)
    kind: Literal["compare"] = "compare"

    @property
    def plan(self) -> ComparisonPlan:
        return read_plan([self.path], self.overrides)

    @property
    def workload(self) -> str:
        return self.plan.workload

    def run(self, folder: Path, observer: Observer, n_jobs: int | None) -> list[Path]:
        run_variants(self.plan, folder, observer, n_jobs)
        return [folder]

    def measured(self, folder: Path) -> MeasuredVariants | None:
        if not (folder / Comparison.file_name).is_file():
            return None
        return MeasuredVariants(Comparison.read(folder))
