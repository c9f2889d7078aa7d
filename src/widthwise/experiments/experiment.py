"""An experiment before it is run: points, each a recipe that is trained with every seed.

The points of a comparison are given by name, those of a sweep by axes or by a sampler, those of a ladder by rungs.
"""

import string
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from widthwise.computing import Precision
from widthwise.config_io import Config, checked_copy
from widthwise.experiments.matching import Adjustment, Matched, check_trainable
from widthwise.mistakes import counted
from widthwise.model.config import cost_summary, pflops_days
from widthwise.recipe.recipe import Recipe
from widthwise.records.outcome import Tuning
from widthwise.records.quantities import OF_MODELS

if TYPE_CHECKING:
    from widthwise.experiments.sweep import SweepSpace

MOST_POINTS = 1000
"""Largest number of variants or points that are given, rather than drawn: each is built before the first is trained."""
ALLOWED_IN_NAMES = frozenset(string.ascii_letters + string.digits + "._+-")


def check_name(key: str, name: str) -> None:
    """Raises ValueError for a name that a folder should not have. key: path of the name in the section."""
    if not name or not set(name) <= ALLOWED_IN_NAMES:
        raise ValueError(f"{key}: got the name {name!r}; letters, digits, '.', '_', '+' and '-' are allowed")


def seeded(recipe: Recipe, seed: int) -> Recipe:
    """Return the recipe of one run. The seed sets initial weights and data order: one seed sees one order of text."""
    return checked_copy(recipe, "recipe", train=checked_copy(recipe.train, "train", seed=seed))


def run_path(name: str, seed: int) -> Path:
    """Return the path of a run inside the folder of its experiment."""
    return Path("runs") / f"{name}-seed{seed}"


@dataclass(frozen=True)
class Point:
    """One recipe of an experiment; seeds are set run by run."""

    name: str
    recipe: Recipe
    group: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Recipe key -> value, where the point is one of axes."""
    adjustment: Adjustment | None = None
    """Changes that make it match its baseline."""


@dataclass(frozen=True)
class Experiment:
    """Points that are trained with the same seeds, and compared."""

    title: str
    """Name of its recipe, or names of several."""
    points: Mapping[str, Point]
    """By name, in order, as far as they are known before the experiment is run."""
    seeds: tuple[int, ...]
    match: Matched = "none"
    """Quantity in which compared points match."""
    baseline: str | None = None
    """The point with which all others are compared."""
    baseline_group: str | None = None
    """In a ladder the group with whose point of the same values the others are compared."""
    section: Config | None = None
    """The section of the recipe that describes the experiment; None for several recipes."""
    tuning: Tuning | None = None
    """Values of its points that are those of a sweep."""
    axes: Mapping[str, Mapping[str, Any]] | None = None
    """Group -> recipe key -> its values, or a range as a mapping; None for points given by name."""
    space: "SweepSpace | None" = None
    """Further points are chosen from here; None for none."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Point -> why it could not be adjusted as asked."""

    @property
    def kind(self) -> Literal["comparison", "sweep", "ladder"]:
        if self.axes is None:
            return "comparison"
        return "sweep" if self.baseline_group is None else "ladder"

    def title_in(self, folder: Path) -> str:
        """Return the title of its page: `title` of the section, otherwise the name of the folder."""
        return getattr(self.section, "title", None) or folder.resolve().name

    @property
    def reference(self) -> Recipe:
        """The recipe whose held-out text judges all points."""
        if self.points:
            return next(iter(self.points.values())).recipe
        assert self.space is not None
        return self.space.reference

    @property
    def recipes(self) -> dict[str, Recipe]:
        return {name: point.recipe for name, point in self.points.items()}

    @property
    def n_points(self) -> int:
        """Number of points to train, the baseline and those to be chosen included."""
        return len(self.points) + (self.space.n_trials if self.space else 0)

    def settled(self, choose: Callable[[], Precision]) -> "Experiment":
        """Return the experiment with one chosen precision for all recipes that say `auto`."""
        chosen = cache(choose)
        settled = {name: replace(point, recipe=point.recipe.settled(chosen)) for name, point in self.points.items()}
        return replace(self, points=settled)

    def baseline_of(self, group: str, values: Mapping[str, Any]) -> str | None:
        """Return the name of the point that a point is compared with: itself for a baseline, None if there is none."""
        if self.baseline_group is None:
            return self.baseline
        alike = (each for each in self.points.values() if (each.group, each.values) == (self.baseline_group, values))
        return next(alike).name

    @property
    def order(self) -> list[tuple[str, int]]:
        """Point and seed of the runs of known points, in the order of training: seed by seed where points are given by
        name, so that all have a first result early; else point by point, so that a point is soon known."""
        if self.axes is None:
            return [(name, seed) for seed in self.seeds for name in self.points]
        return [(name, seed) for name in self.points for seed in self.seeds]

    @property
    def adjustments(self) -> dict[str, Adjustment]:
        """Adjusted point -> its changes."""
        return {name: point.adjustment for name, point in self.points.items() if point.adjustment is not None}

    @property
    def adjustment_lines(self) -> list[str]:
        """Text on the changes and the miss of each adjusted point, values that a sweep chose, and dead parameters."""
        found = [f"{name}: {adjustment}" for name, adjustment in self.adjustments.items()]
        if self.tuning is not None:
            found += [f"{each.name}: {each.in_words} (of {self.tuning.sweep})" for each in self.tuning.variants]
        if self.axes is None:
            dead = {name: recipe.final_model.n_dead_params for name, recipe in self.recipes.items()}
            found += [
                f"{name}: {n:,} of its parameters never learn, as its shape has it" for name, n in dead.items() if n
            ]
        return found

    @property
    def in_words(self) -> str:
        """The amount of work."""
        work, what = self.workload(n_runs=1), "variant" if self.axes is None else "point"
        counts = ({row[key] for row in work["points"]} for key in ("steps", "tokens"))
        steps, tokens = (" to ".join(f"{n:,}" for n in sorted({min(each), max(each)})) for each in counts)
        compute = pflops_days(work["training_flops"], 1)
        return (
            f"{counted(work['n_points'], what)} x {counted(len(self.seeds), 'seed')}: "
            f"{counted(work['n_runs'], 'run')} of {steps} steps and {tokens} tokens, together "
            f"{work['training_flops']:.3g} training FLOPs ({compute:.3g} PFLOP/s-days)"
        )

    def workload(self, n_runs: int | None = None) -> dict[str, Any]:
        """Return the costs of every point and the work of all runs, as plain data.

        Points that are not chosen yet count as the mean of the known ones, or as the reference if none is known.
        n_runs: runs of a point whose tokens and training FLOPs its row has; by default those of all seeds. Raises
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


RATIOS = (*(name for name, each in OF_MODELS.items() if each.has_ratio), "tokens", "training_flops")
"""Costs whose ratio to the baseline's a workload has."""


def _costs(point: Point) -> dict[str, Any]:
    """Return a point with the costs of one run of it."""
    recipe, adjustment = point.recipe, point.adjustment
    check_trainable(recipe, point.name)
    cost = cost_summary(recipe.final_model, recipe.seq_len)
    place = {"name": point.name, "group": point.group, "values": dict(point.values)}
    counted = {key: OF_MODELS[key].of_cost(cost) for key in RATIOS if key in OF_MODELS}
    steps = {"steps": recipe.train.steps, "tokens": recipe.n_tokens}
    flops = {"training_flops": recipe.training_flops, "pflops_days": recipe.pflops_days}
    return {**place, **counted, **steps, **flops, "adjusted": None if adjustment is None else asdict(adjustment)}
