"""The plan of a sweep: points, each a recipe with some of its keys set, and the runs of each over seeds."""

import copy
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from widthwise.bundled import recipe_name
from widthwise.computing import Precision
from widthwise.config_io import UserError, parse, to_data
from widthwise.experiments.adjusting import Adjustment, MatchConfig, adjusted, match_asked, parts_of
from widthwise.experiments.matching import Matched, check_matched, check_same_windows, check_trainable
from widthwise.experiments.sweep.axes import word
from widthwise.experiments.sweep.config import ASPECT, NO_GROUP, SweepConfig, where
from widthwise.experiments.workload import counted_work
from widthwise.merging import merge
from widthwise.recipe.recipe import Recipe, parse_recipe
from widthwise.yaml_io import apply_overrides, parse_yaml, read_recipe

if TYPE_CHECKING:
    from optuna import Trial
    from optuna.samplers import BaseSampler

LONGEST_NAME = 150
"""Characters; file systems allow names of 255 bytes, and the seed is appended."""
NUMBERED = "#"
"""Prefix for the number of a point whose name is not known yet; no name contains it."""
GROUP_PARAMETER = "group"
"""Name, in the study, of the group that a search chose."""


@dataclass(frozen=True)
class SweepPoint:
    """One recipe of a sweep; seeds are set run by run."""

    name: str
    group: str
    values: dict[str, Any]
    recipe: Recipe
    adjustment: Adjustment | None = None
    """What became of it so that it matches the baseline."""


@dataclass(frozen=True)
class SweepPlan:
    """A sweep before it is run."""

    title: str
    config: SweepConfig
    data: Mapping[str, Any]
    """The recipe without its sweep section."""

    @cached_property
    def baseline(self) -> SweepPoint | None:
        """The point that others are compared with. Raises UserError if it cannot be trained."""
        if self.config.baseline is None:
            return None
        name = self.config.baseline_name
        recipe = parse(Recipe, merge(self.data, self.config.baseline), f"{self.title}: sweep.baseline")
        check_trainable(recipe, name)
        return SweepPoint(name, NO_GROUP, {}, recipe)

    @cached_property
    def grid(self) -> dict[str, SweepPoint]:
        """Name -> point, the baseline first; for a search only the baseline. Raises UserError for the first impossible
        point, or if two have the same name."""
        points = [] if self.baseline is None else [self.baseline]
        if self.config.search is None:
            points += [self.point(group, values) for group, values in self._combinations()]
        found: dict[str, SweepPoint] = {}
        for point in points:
            if point.name in found:
                raise UserError(f"sweep: two points are named {point.name}; rename a group, or the baseline")
            found[point.name] = point
        self._check_distinct([point for point in points if point.adjustment is not None])
        return found

    def _check_distinct(self, points: Sequence[SweepPoint]) -> None:
        """Raises UserError if two points became the same by adjusting."""
        for one, other in itertools.combinations(points, 2):
            if one.recipe == other.recipe:
                raise UserError(
                    f"sweep: {one.name} and {other.name} become the same model ({other.adjustment}); leave one out"
                )

    def _combinations(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for group, axes in self.config.axes.items():
            for values in itertools.product(*(axis.grid(f"{where(group)}.{key}") for key, axis in axes.items())):
                yield group, dict(zip(axes, values))

    def point(self, group: str, values: dict[str, Any]) -> SweepPoint:
        """A point of a group. Raises UserError, with its name, if it cannot be trained or compared."""
        name = point_name(group, values)
        recipe, adjustment = self._adjusted(name, group, values)
        check_trainable(recipe, name)
        if self.baseline is not None:
            advice = "resize it, or say match: none under sweep, or --match none"
            check_matched({name: recipe}, self.baseline.name, self.baseline.recipe, self.config.matched, advice)
        else:
            check_same_windows(name, recipe, *self.reference)
        return SweepPoint(name, group, values, recipe, adjustment)

    def _adjusted(self, name: str, group: str, values: Mapping[str, Any]) -> tuple[Recipe, Adjustment | None]:
        """The recipe of a point, with what `match` adjusts of it."""
        recipe = self._recipe(name, group, {key: value for key, value in values.items() if key != ASPECT})
        parts = parts_of(self.config.match, group)
        if not parts or self.baseline is None:
            return recipe, None
        return adjusted(name, recipe, self.baseline.recipe, self.config.matched, parts, values.get(ASPECT))

    def _recipe(self, name: str, group: str, values: Mapping[str, Any]) -> Recipe:
        change = self.config.groups[group].change if group else {}
        data = copy.deepcopy(merge(self.data, change))
        apply_overrides(data, (f"{key}={json.dumps(value)}" for key, value in values.items()))
        return parse(Recipe, data, name)

    @cached_property
    def reference(self) -> tuple[str, Recipe]:
        """Name and recipe on whose held-out text all points are judged: the baseline, else the first point of a grid
        or, for a search, the unchanged recipe. Raises UserError if that is not a valid recipe."""
        if self.baseline is not None:
            return self.baseline.name, self.baseline.recipe
        if self.config.search is not None:
            return self.title, parse_recipe(dict(self.data), self.title)
        group, values = next(self._combinations())
        name = point_name(group, values)
        return name, self._recipe(name, group, values)

    @property
    def matched(self) -> Matched:
        """What the points that are compared have in common."""
        return self.config.matched

    @property
    def baseline_group(self) -> str | None:
        """The group with whose points of equal values the others are compared; None: with the baseline, if any."""
        return None

    def baseline_of(self, group: str, values: Mapping[str, Any]) -> str | None:
        """Name of the point that a point is compared with, itself if others are compared with it; None: with none."""
        if self.baseline_group is not None:
            return point_name(self.baseline_group, values)
        return self.baseline and self.baseline.name

    @property
    def keys(self) -> list[str]:
        """Keys of the points in the study, in their order: the names of a grid, the numbers of a search."""
        n_trials = 0 if self.config.search is None else self.config.search.n_trials
        return [*self.grid, *(f"{NUMBERED}{index}" for index in range(n_trials))]

    def sampler(self, key: str) -> "BaseSampler":
        """The sampler for one point of a search. It depends only on the key and on what has finished before, so that
        an interrupted search continues as it would have."""
        assert self.config.search is not None
        return self.config.search.sampler_at(int(key.removeprefix(NUMBERED)))

    def drawn(self, trial: "Trial") -> tuple[str, dict[str, Any]]:
        """Group and values that the sampler of a search chooses for a trial."""
        axes = self.config.axes
        group = trial.suggest_categorical(GROUP_PARAMETER, list(axes)) if len(axes) > 1 else next(iter(axes))
        return group, {key: axis.drawn(trial, parameter(group, key)) for key, axis in axes[group].items()}

    @property
    def n_points(self) -> int:
        """Number of points to train, including the baseline."""
        search = self.config.search
        return len(self.grid) + (0 if search is None else search.n_trials)

    def settled(self, choose: Callable[[], Precision]) -> "SweepPlan":
        """The same sweep in a precision that is chosen, where its recipe says `auto`."""
        if self.data.get("train", {}).get("precision") != "auto":
            return self
        return replace(self, data=merge(self.data, {"train": {"precision": choose()}}))

    @property
    def identity(self) -> str:
        """Equal for sweeps that may share a study: all that decides what is trained, except the length of a search."""
        search = self.config.search
        points = {name: to_data(point.recipe) for name, point in self.grid.items()}
        axes = None if search is None else self.axes_as_data()
        described = [points, list(self.config.seeds), self.config.matched, axes, search and search.sampler]
        if search is not None:
            described += [dict(self.data), {name: group.change for name, group in self.config.groups.items()}]
            if isinstance(self.config.match, MatchConfig):
                described.append(to_data(self.config.match))
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()

    def axes_as_data(self) -> dict[str, dict[str, Any]]:
        """Group -> key -> list of values, or a range as a mapping."""
        return {group: {key: axis.as_data() for key, axis in axes.items()} for group, axes in self.config.axes.items()}

    @property
    def adjustments(self) -> dict[str, Adjustment]:
        """Adjusted point of a grid -> what became of it."""
        return {name: point.adjustment for name, point in self.grid.items() if point.adjustment is not None}

    @property
    def adjustment_lines(self) -> list[str]:
        """For each adjusted point of a grid its numbers and its miss, in words."""
        return [f"{name}: {adjustment}" for name, adjustment in self.adjustments.items()]

    def workload(self) -> dict[str, Any]:
        """The planned work, as `counted_work` describes it.

        The points of a search are not known in advance; `points` then holds the baseline, or the unchanged recipe.
        """
        recipes = {name: point.recipe for name, point in self.grid.items()} or dict([self.reference])
        baseline, n_seeds = self.baseline and self.baseline.name, len(self.config.seeds)
        return counted_work(recipes, n_seeds, baseline, self.config.matched, self.adjustments, self.n_points)


def point_name(group: str, values: Mapping[str, Any]) -> str:
    """The name of a point, "x-0.25-0.3" in group x. Raises UserError if it is too long for a folder."""
    name = "-".join(filter(None, [group, *map(word, values.values())]))
    if len(name) > LONGEST_NAME:
        raise UserError(f"sweep: the point {name[:40]}... has a name of {len(name)} letters; make a group of it")
    return name


def parameter(group: str, key: str) -> str:
    """Name of a key in the study; it includes the group, because groups may give a key different values."""
    return f"{group}/{key}" if group else key


def read_sweep(path: Path, overrides: Sequence[str] = (), asked: Mapping[str, Any] | None = None) -> SweepPlan:
    """The sweep of a recipe file, every point of a grid checked. Raises UserError.

    asked: keys of the sweep section that replace those of the file, which may then have no such section; `match` and
    `adjust` replace each its part of what the file says to match.
    """
    data = read_recipe(path, overrides)
    section = data.pop("sweep", {})
    if not section and not asked:
        raise UserError(f"{path}: has no sweep section; say what to vary there or with --over")
    if not isinstance(section, dict):
        raise UserError(f"{path}: sweep: got {section!r}; expected a mapping with over or groups")
    config = parse(SweepConfig, _laid_over(section, asked or {}), f"{path}: sweep")
    plan = SweepPlan(recipe_name(path), config, data)
    _ = plan.grid  # raises for a point that cannot be
    return plan


def _laid_over(section: dict[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    groups = section.get("groups")
    named = groups.values() if isinstance(groups, dict) else []
    own_axes = [isinstance(group, dict) and "over" in group for group in named]
    if "over" in asked and own_axes and all(own_axes):
        raise UserError("--over: every group of the recipe has axes of its own")
    match, adjust = asked.get("match"), asked.get("adjust")
    changed = {**section, **{key: value for key, value in asked.items() if key != "adjust"}}
    if match or adjust:
        changed["match"] = match_asked(section.get("match"), match, adjust)
    if asked.get("search") and isinstance(section.get("search"), dict):
        changed["search"] = section["search"] | asked["search"]
    return changed


def read_axes(texts: Iterable[str]) -> dict[str, Any]:
    """The axes given on the command line, by key. Raises UserError if a key is given twice."""
    axes: dict[str, Any] = {}
    for key, axis in map(read_axis, texts):
        if key in axes:
            raise UserError(f"--over {key}: is given twice; say all its values in one")
        axes[key] = axis
    return axes


def read_axis(text: str) -> tuple[str, Any]:
    """ "optimizer.lr=0.002,0.004", or "optimizer.lr={low: 1e-4, high: 1e-2}" -> key and axis as written in a recipe.

    Raises UserError.
    """
    key, equals, values = text.partition("=")
    if not (key and equals and values):
        raise UserError(f"--over: got {text!r}; expected key=value,value or key={{low: ..., high: ...}}")
    items = parse_yaml(f"[{values}]", f"--over {key}")
    return key, items[0] if len(items) == 1 and isinstance(items[0], dict) else items
