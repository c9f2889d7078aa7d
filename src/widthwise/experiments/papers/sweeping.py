"""An item whose numbers a sweep gives."""

from pathlib import Path
from typing import Literal

from widthwise.experiments.experiment import Experiment as Plan
from widthwise.experiments.jobs import Jobs
from widthwise.experiments.papers.experiment import Experiment, MeasuredVariants
from widthwise.experiments.running import run_sweep
from widthwise.experiments.sweep import read_sweep
from widthwise.records.sweep import Sweep
from widthwise.runs.environment import command_line
from widthwise.training.observer import Observer


def workload_of(plan: Plan) -> str:
    work = plan.workload()
    return f"{work['n_runs']} runs, together {work['training_flops']:.3g} training FLOPs"


def run_points(plan: Plan, folder: Path, observer: Observer, n_jobs: int | None) -> None:
    """Trains the points of a plan that have not finished."""
    jobs = Jobs.of([plan.reference, *plan.recipes.values()], plan.workload()["n_runs"], n_jobs)
    run_sweep(plan, folder, command_line(), observer=observer, jobs=jobs)


class Sweeping(Experiment):
    """A recipe with a sweep section."""

    tiny_overrides = ("sweep.seeds=[1]",)
    kind: Literal["sweep"] = "sweep"

    @property
    def plan(self) -> Plan:
        return read_sweep(self.path, self.overrides)

    @property
    def workload(self) -> str:
        return workload_of(self.plan)

    def run(self, folder: Path, observer: Observer, n_jobs: int | None) -> list[Path]:
        run_points(self.plan, folder, observer, n_jobs)
        return [folder]

    def measured(self, folder: Path) -> MeasuredVariants | None:
        return MeasuredVariants(Sweep.read(folder)) if (folder / Sweep.file_name).is_file() else None
