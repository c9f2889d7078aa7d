"""An item whose numbers are laws through a ladder of sizes."""

from pathlib import Path
from typing import Literal

from widthwise.experiments.experiment import Experiment as Plan
from widthwise.experiments.ladder import read_ladder
from widthwise.experiments.papers.experiment import Experiment
from widthwise.experiments.papers.fitting import MeasuredLaws, fit
from widthwise.experiments.papers.sweeping import run_points, workload_of
from widthwise.experiments.scaling.points import Axes
from widthwise.records.scaling import LawName, ScalingLaws
from widthwise.training.observer import Observer

POINTS = "points"
"""Folder of the trained sizes, inside the ladder's; that of a law is named after the quantity of its x axis."""


class Laddering(Experiment):
    """A recipe with a ladder section, and laws through its sizes."""

    tiny_overrides = ("ladder.seeds=[1]", "ladder.tokens_per_param=0.005")
    kind: Literal["ladder"] = "ladder"
    over: tuple[str, ...] = ("training_flops",)
    """Quantities of the x axes, one law over each."""
    law: LawName | None = None

    @property
    def plan(self) -> Plan:
        return read_ladder(self.path, self.overrides)

    @property
    def workload(self) -> str:
        return workload_of(self.plan)

    def run(self, folder: Path, observer: Observer, n_jobs: int | None) -> list[Path]:
        plan = self.plan
        run_points(plan, folder / POINTS, observer, n_jobs)
        baseline = plan.baseline_group
        for x in self.over:
            fit([folder / POINTS], Axes(x, "val_loss"), baseline, self.law).write(folder / x)
        return [folder / POINTS, *(folder / x for x in self.over)]

    def measured(self, folder: Path) -> MeasuredLaws | None:
        found = {x: folder / x for x in self.over if (folder / x / ScalingLaws.file_name).is_file()}
        return MeasuredLaws({x: ScalingLaws.read(path) for x, path in found.items()}) if found else None
