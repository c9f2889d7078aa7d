"""A plan of an experiment: points, each a recipe that is trained with every seed, and their baselines."""

import string
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from widthwise.experiments.matching import MatchedQuantity, Point, check_trainable
from widthwise.mistakes import counted
from widthwise.model.config import cost_summary, pflops_days
from widthwise.recipe.recipe import Recipe
from widthwise.records.outcome import Tuning
from widthwise.records.quantities import MODEL_COSTS

MOST_POINTS = 1000
"""Largest number of listed variants or points: all of them are built before the first is trained."""
ALLOWED_IN_NAMES = frozenset(string.ascii_letters + string.digits + "._+-")


def check_name(key: str, name: str) -> None:
    """Raise ValueError for a name unsuitable for a folder. key: path of the name in the section."""
    if not name or not set(name) <= ALLOWED_IN_NAMES:
        raise ValueError(f"{key}: got the name {name!r}; letters, digits, '.', '_', '+' and '-' are allowed")


def run_path(name: str, seed: int) -> Path:
    """Return the path of a run inside the folder of its experiment."""
    return Path("runs") / f"{name}-seed{seed}"


@dataclass(frozen=True, kw_only=True)
class Plan(ABC):
    """Points that are trained with the same seeds, and compared."""

    kind: ClassVar[Literal["comparison", "sweep", "ladder"]]
    point_title: ClassVar[str] = "point"
    """The word for a point in tables and sentences."""
    title: str
    """Name of the recipe, or names of several, joined."""
    page_title: str | None = None
    """Title of the page of results; default: the name of the folder."""
    points: Mapping[str, Point]
    """Points by name, in order, except points that a sampler draws during the experiment."""
    seeds: tuple[int, ...]
    match: MatchedQuantity = "none"
    """Quantity that is equal in compared points."""
    baseline: str | None = None
    """Name of the point with which all others are compared."""

    @property
    @abstractmethod
    def order(self) -> list[tuple[str, int]]:
        """Point and seed of the runs of listed points, in the order of training."""

    def baseline_of(self, group: str, values: Mapping[str, Any]) -> str | None:
        """Return the name of the baseline of a point, which for the baseline is its own name; None if there is none."""
        return self.baseline

    @property
    def reference(self) -> Recipe:
        """A recipe with the data and held-out text of all points."""
        return next(iter(self.points.values())).recipe

    @property
    def recipes(self) -> dict[str, Recipe]:
        return {name: point.recipe for name, point in self.points.items()}

    @property
    def n_points(self) -> int:
        """Number of points to train, including the baseline and points to be drawn."""
        return len(self.points)

    @property
    def notes(self) -> list[str]:
        """A line for each adjusted point: its changes and its miss."""
        return [f"{name}: {point.adjustment}" for name, point in self.points.items() if point.adjustment is not None]

    @property
    def summary(self) -> str:
        """A sentence on the amount of work."""
        work = self.workload(n_runs=1)
        ranges = dict[str, str]()
        for key in ("steps", "tokens"):
            counts = [row[key] for row in work["points"]]
            ranges[key] = " to ".join(f"{n:,}" for n in sorted({min(counts), max(counts)}))
        compute = pflops_days(work["training_flops"], 1)
        return (
            f"{counted(work['n_points'], self.point_title)} x {counted(len(self.seeds), 'seed')}: "
            f"{counted(work['n_runs'], 'run')} of {ranges['steps']} steps and {ranges['tokens']} tokens, together "
            f"{work['training_flops']:.3g} training FLOPs ({compute:.3g} PFLOP/s-days)"
        )

    def workload(self, n_runs: int | None = None) -> dict[str, Any]:
        """Return the costs of every point and the work of all runs, as plain data.

        Points to be drawn count as the mean of the listed points, or as the reference if there are none. n_runs: number
        of runs over which tokens and training FLOPs of each point are summed; default: one for each seed. Raises
        UserError for an impossible model.
        """
        n_seeds = len(self.seeds)
        rows = [_costs(point) for point in self.points.values() or (Point(self.title, self.reference),)]
        base = next((row for row in rows if row["name"] == self.baseline), None)
        is_matched = base is not None and self.match != "none"
        for row in rows:
            ratio = {} if base is None else {key: row[key] / base[key] for key in RATIOS}
            row["ratio"] = ratio or None
            row["miss"] = ratio[self.match] - 1 if is_matched and row is not base else None
        mean_flops = sum(row["training_flops"] for row in rows) / len(rows)
        for row in rows:
            row |= {key: (n_runs or n_seeds) * row[key] for key in ("tokens", "training_flops")}
        return {
            "title": self.title,
            "n_points": self.n_points,
            "n_drawn": self.n_points - len(self.points),
            "seeds": list(self.seeds),
            "n_runs": self.n_points * n_seeds,
            "training_flops": n_seeds * mean_flops * self.n_points,
            "baseline": self.baseline,
            "match": self.match if is_matched else None,
            "points": rows,
        }


@dataclass(frozen=True, kw_only=True)
class Comparison(Plan):
    """Named variants, trained seed by seed, so that all have a first result early."""

    kind = "comparison"
    point_title = "variant"
    tuning: Tuning | None = None
    """Values of the variants that a sweep chose."""

    @property
    def order(self) -> list[tuple[str, int]]:
        return [(name, seed) for seed in self.seeds for name in self.points]

    @property
    def notes(self) -> list[str]:
        """Lines on adjusted variants, on values that a sweep chose, and on parameters without gradient."""
        lines = super().notes
        if self.tuning is not None:
            for choice in self.tuning.variants:
                chosen = ", ".join(f"{key} {value:.7g}" for key, value in choice.chosen.items())
                lines.append(f"{choice.name}: {chosen} (of {self.tuning.sweep})")
        for name, recipe in self.recipes.items():
            if n := recipe.final_model.n_dead_params:
                lines.append(f"{name}: {n:,} parameters receive no gradient because of the shape")
        return lines


@dataclass(frozen=True, kw_only=True)
class Sweep(Plan):
    """All combinations of the values of axes, trained point by point, so that a first point finishes early."""

    kind = "sweep"
    sampler: str = "grid"
    """The sampler that draws the points, or `grid`."""
    storage: ClassVar[str] = ""
    """File of the study that draws the points."""
    axes: Mapping[str, Mapping[str, Any]]
    """Group -> recipe key -> its values, or a range as a mapping."""

    @property
    def order(self) -> list[tuple[str, int]]:
        return [(name, seed) for name in self.points for seed in self.seeds]


@dataclass(frozen=True, kw_only=True)
class Ladder(Sweep):
    """Groups at several sizes, compared size by size."""

    kind = "ladder"
    baseline_group: str
    """Group whose point of the same values is the baseline."""

    def baseline_of(self, group: str, values: Mapping[str, Any]) -> str:
        key = (self.baseline_group, values)
        return next(point.name for point in self.points.values() if (point.group, point.values) == key)


RATIOS = (*(name for name, cost in MODEL_COSTS.items() if cost.has_ratio), "tokens", "training_flops")
"""Costs whose ratio to the baseline is part of a workload."""


def _costs(point: Point) -> dict[str, Any]:
    """Return a row of a workload, with the costs of one run. Raises UserError for an impossible model."""
    recipe = point.recipe
    check_trainable(point)
    cost = cost_summary(recipe.final_model, recipe.seq_len)
    costs = {key: MODEL_COSTS[key].of_cost(cost) for key in RATIOS if key in MODEL_COSTS}
    costs |= {"steps": recipe.train.steps, "tokens": recipe.n_tokens}
    costs |= {"training_flops": recipe.training_flops, "pflops_days": recipe.pflops_days}
    adjusted = None if point.adjustment is None else asdict(point.adjustment)
    return {"name": point.name, "group": point.group, "values": dict(point.values), **costs, "adjusted": adjusted}
