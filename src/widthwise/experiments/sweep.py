"""The `sweep:` section of a recipe: axes, and the points on them, in a grid or chosen by a sampler."""

import copy
import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
from pydantic import Field

from widthwise.config_io import Config, parse, to_data
from widthwise.experiments.axes import Axis, point_name
from widthwise.experiments.compare import read_plan
from widthwise.experiments.matching import (
    MatchConfig,
    MatchSection,
    check_same_windows,
    check_trainable,
    comparable,
    match_with_options,
    without_null,
    without_unused,
)
from widthwise.experiments.plan import MOST_POINTS, Point, Sweep, check_name
from widthwise.experiments.rates import with_values
from widthwise.experiments.rungs import RUNG, RungsConfig, rung_points
from widthwise.mistakes import REMOVED, UserError
from widthwise.recipe.recipe import Recipe, parse_recipe
from widthwise.recipe.train_section import Seeds
from widthwise.yaml_io import apply_overrides, merge, parse_yaml, read_recipe, recipe_name

if TYPE_CHECKING:
    from optuna import Trial

STUDY_FILE = "study.log"
SEED_KEY = "train.seed"
ASPECT = "aspect"
"""An axis that is not a recipe key: d_model / n_layers of points whose width is solved."""
GROUP_PARAMETER = "group"
"""Name, in the study, of the group that a search chose."""


class SweepGroup(Config):
    """Points with common changes to the recipe."""

    change: dict[str, Any] = Field(default_factory=dict)
    """Changes to the recipe."""
    over: dict[str, Axis] | None = None
    """Recipe key -> its axis; default: the axes of the whole sweep."""


class SearchConfig(Config):
    """Points chosen by a sampler, instead of a grid."""

    sampler: Literal["tpe", "random"] = "tpe"
    n_trials: pydantic.PositiveInt
    """Points to train, not counting the baseline."""


class SweepConfig(RungsConfig):
    """The `sweep:` section of a recipe."""

    title: str | None = None
    """Title of the page; default: the name of its folder."""
    baseline: dict[str, Any] | None = None
    """Changes to the recipe that make the baseline; {}: the unchanged recipe."""
    baseline_name: str = "baseline"
    over: dict[str, Axis] = Field(default_factory=dict)
    """Recipe key -> its axis. If `match` adjusts d_model, `aspect` may be an axis too: d_model / n_layers, for which
    the depth is solved."""
    groups: Annotated[
        dict[str, SweepGroup],
        pydantic.BeforeValidator(without_null, json_schema_input_type=dict[str, SweepGroup | None]),
    ] = Field(default_factory=dict)
    """Name -> a separate grid; null drops a group of an extended recipe."""
    search: SearchConfig | None = None
    """Sampler that chooses points; default: a grid of all combinations."""
    seeds: Seeds = (1, 2, 3)
    match: MatchSection | None = None
    """Quantity that every point must match with the baseline within one percent, and the parts of all points, or of a
    group, adjusted to reach it; default: params if there is a baseline."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _adjust_used(cls, section: Any) -> Any:
        return without_unused(section, "groups")

    @pydantic.model_validator(mode="after")
    def _check(self) -> "SweepConfig":
        check_name("baseline_name", self.baseline_name)
        for name in self.groups:
            check_name("groups", name)
        if self.rungs:
            if not self.groups:
                raise ValueError(
                    "groups: got none; every group is trained on every rung, and the first is the baseline"
                )
            has_group_axes = any(group.over for group in self.groups.values())
            if self.over or self.search or self.baseline is not None or has_group_axes:
                raise ValueError("rungs: conflicts with over, search and baseline; the rungs are the only axis")
            self.matching.check_names(self.groups, next(iter(self.groups)))
            return self
        if not self.groups and not self.over:
            raise ValueError("over: got no key; name what to vary, such as optimizer.lr: [0.002, 0.004], or groups")
        for group, axes in self.axes.items():
            if SEED_KEY in axes:
                raise ValueError(
                    f"{self._where(group)}.{SEED_KEY}: every point runs with all of sweep.seeds; vary another key"
                )
            parts = self.matching.parts_of(group)
            if ASPECT in axes and "d_model" not in parts:
                raise ValueError(
                    f"{self._where(group)}.{ASPECT}: needs match: {{adjust: d_model}}, which solves the width for it"
                )
            for key, is_solved in (("model.d_model", "d_model" in parts), ("model.n_layers", ASPECT in axes)):
                if key in axes and is_solved:
                    raise ValueError(f"{self._where(group)}.{key}: is solved from the budget; vary another key")
        self.matching.check_names(self.groups)
        if self.baseline is None and self.matching.quantity != "none":
            raise ValueError(
                f"match: got {self.matching.quantity!r}; nothing can be matched without a baseline (baseline: {{}})"
            )
        return self

    @property
    def axes(self) -> dict[str, dict[str, Axis]]:
        """Group -> its axes; the key is "" if there are no groups."""
        if not self.groups:
            return {"": self.over}
        return {name: self.over if group.over is None else group.over for name, group in self.groups.items()}

    def combinations(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield group and values of every point of a grid. Raises UserError for a range."""
        for group, grid in self.grids().items():
            for values in itertools.product(*grid.values()):
                yield group, dict(zip(grid, values))

    def grids(self) -> dict[str, dict[str, tuple[Any, ...]]]:
        """Return group -> key -> values. Raises UserError for a range."""
        return {
            group: {key: axis.grid(f"{self._where(group)}.{key}") for key, axis in axes.items()}
            for group, axes in self.axes.items()
        }

    def _where(self, group: str) -> str:
        """Return the path of the axes of a group in the section."""
        has_axes = group in self.groups and self.groups[group].over is not None
        return f"groups.{group}.over" if has_axes else "over"

    def axes_as_data(self) -> dict[str, dict[str, Any]]:
        """Return group -> key -> list of values, or a range as a mapping."""
        return {group: {key: axis.as_data() for key, axis in axes.items()} for group, axes in self.axes.items()}

    @property
    def matching(self) -> MatchConfig:
        """`match`, or its default."""
        return self.match or MatchConfig(quantity="params" if self.rungs or self.baseline is not None else "none")


class SweepSpace:
    """All points on the axes of a sweep."""

    def __init__(self, title: str, config: SweepConfig, data: Mapping[str, Any]):
        """data: the recipe without its sweep section. Raises UserError if the baseline cannot be trained."""
        self.config = config
        self._data = data
        self.baseline: Point | None = None
        if config.baseline is not None:
            recipe = parse(Recipe, merge(data, config.baseline), f"{title}: sweep.baseline")
            check_trainable(recipe, config.baseline_name)
            self.baseline = Point(config.baseline_name, recipe)
        self.n_trials = 0 if config.search is None else config.search.n_trials
        if self.baseline is not None:
            self._reference = self.baseline.name, self.baseline.recipe
        elif config.search is not None:
            self._reference = title, parse_recipe(dict(data), title)
        else:
            group, values = next(config.combinations())
            name = point_name(group, values)
            self._reference = name, self._recipe(name, group, values)

    @property
    def reference(self) -> Recipe:
        return self._reference[1]

    def grid(self) -> dict[str, Point]:
        """Return name -> point, the baseline first; for a search only the baseline.

        Raises UserError for the first impossible point, or if two points have the same name or become the same model.
        """
        points = [] if self.baseline is None else [self.baseline]
        if self.config.search is None:
            n_points = sum(math.prod(map(len, grid.values())) for grid in self.config.grids().values())
            if n_points > MOST_POINTS:
                raise UserError(f"sweep: a grid of {n_points:,} points; must be at most {MOST_POINTS:,}, or add search")
            points += [self.point(group, values) for group, values in self.config.combinations()]
        by_name = dict[str, Point]()
        for point in points:
            if point.name in by_name:
                raise UserError(f"sweep: two points are named {point.name}; rename a group, or the baseline")
            by_name[point.name] = point
        for a, b in itertools.combinations((point for point in points if point.adjustment is not None), 2):
            if a.recipe == b.recipe:
                raise UserError(f"sweep: {a.name} and {b.name} become the same model ({b.adjustment}); remove one")
        return by_name

    def point(self, group: str, values: Mapping[str, Any]) -> Point:
        """Return a point of a group. Raises UserError, with its name, if it cannot be trained or compared."""
        name = point_name(group, values)
        adjustment = None
        recipe = self._recipe(name, group, {key: value for key, value in values.items() if key != ASPECT})
        if self.baseline is None:
            check_trainable(recipe, name)
            check_same_windows(name, recipe, *self._reference)
        else:
            where = "sweep, or --match none"
            match = self.config.matching
            recipe, adjustment = comparable(name, recipe, group, self._reference, match, where, values.get(ASPECT))
        return Point(name, recipe, group, values, adjustment)

    def _recipe(self, name: str, group: str, values: Mapping[str, Any]) -> Recipe:
        change = self.config.groups[group].change if group else {}
        data = copy.deepcopy(merge(self._data, change))
        apply_overrides(data, (f"{key}={json.dumps(value)}" for key, value in values.items()))
        return parse(Recipe, data, name)

    def draw(self, trial: "Trial") -> tuple[str, dict[str, Any]]:
        """Return the group and values that the sampler chooses for a trial."""
        axes = self.config.axes
        group = trial.suggest_categorical(GROUP_PARAMETER, list(axes)) if len(axes) > 1 else next(iter(axes))
        # The name of a parameter includes the group, because groups may have different values of a key.
        names = {key: f"{group}/{key}" if group else key for key in axes[group]}
        return group, {key: axis.drawn(trial, names[key]) for key, axis in axes[group].items()}

    def identity(self) -> str:
        """Return a hash of everything that determines training: equal for searches that may share a study."""
        config = self.config
        match = config.matching
        assert config.search is not None
        points = {} if self.baseline is None else {self.baseline.name: to_data(self.baseline.recipe)}
        described = [points, list(config.seeds), match.quantity, config.axes_as_data()]
        described += [
            config.search.sampler,
            dict(self._data),
            {name: group.change for name, group in config.groups.items()},
        ]
        if match.adjust:
            described.append(to_data(match))
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Search(Sweep):
    """A sweep whose points, except the baseline, are drawn by a sampler when it runs."""

    storage = STUDY_FILE
    space: SweepSpace

    @property
    def reference(self) -> Recipe:
        return self.space.reference

    @property
    def n_points(self) -> int:
        return len(self.points) + self.space.n_trials


def read_sweep(path: Path, overrides: Sequence[str] = (), options: Mapping[str, Any] | None = None) -> Sweep:
    """Return the sweep of a recipe file; every point of a grid is checked. Raises UserError.

    options: keys that replace keys of the sweep section, or the whole section if the file has none; `match` and
    `adjust` replace the two parts of the section's `match`.
    """
    options = options or {}
    data = read_recipe(path, overrides)
    if "compare" in data:
        return _sweep_of_variants(path, overrides, options)
    if "ladder" in data:
        raise UserError(f"{path}: ladder: {REMOVED['ladder']}")
    section = data.pop("sweep", {})
    if not section and not options:
        raise UserError(f"{path}: has no sweep section; name what to vary there or with --over")
    if not isinstance(section, dict):
        raise UserError(f"{path}: sweep: got {section!r}; expected a mapping with over or groups")
    config = parse(SweepConfig, _with_options(section, options), f"{path}: sweep")
    title = recipe_name(path)
    about = {"title": title, "page_title": config.title, "seeds": config.seeds, "match": config.matching.quantity}
    if config.rungs:
        changes = {name: group.change for name, group in config.groups.items()}
        return Sweep(
            **about,
            kind="ladder",
            points=rung_points(config, changes, config.matching, data),
            axes={group: {RUNG: list(config.rungs)} for group in changes},
            baseline_group=next(iter(changes)),
        )
    space = SweepSpace(title, config, data)
    about |= {"points": space.grid(), "baseline": space.baseline and space.baseline.name, "axes": config.axes_as_data()}
    if config.search is None:
        return Sweep(**about)
    return Search(**about, space=space, sampler=config.search.sampler)


def _sweep_of_variants(path: Path, overrides: Sequence[str], options: Mapping[str, Any]) -> Sweep:
    """Return every variant of a comparison, sized as in the comparison, at every value of the axes."""
    if "over" not in options or "search" in options:
        raise UserError(f"{path}: has a compare section; `compare` trains it, and --over sweeps its variants on a grid")
    plan = read_plan(path, overrides, match=options.get("match"), adjust=options.get("adjust"))
    section = {key: options[key] for key in ("over", "seeds") if key in options}
    config = parse(SweepConfig, {**section, "groups": {name: {} for name in plan.points}}, f"{path}: sweep")
    points = dict[str, Point]()
    for group, values in config.combinations():
        variant = plan.points[group]
        name = point_name(group, values)
        recipe = with_values(variant.recipe, values, name)
        check_trainable(recipe, name)
        points[name] = Point(name, recipe, group, values, variant.adjustment)
    about = {"title": f"{plan.title}-sweep", "seeds": config.seeds, "match": plan.match}
    return Sweep(**about, points=points, axes=config.axes_as_data())


def _with_options(section: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    groups = section.get("groups")
    group_sections = groups.values() if isinstance(groups, dict) else []
    have_axes = [isinstance(group, dict) and "over" in group for group in group_sections]
    if "over" in options and have_axes and all(have_axes):
        raise UserError("--over: has no effect, because every group of the recipe defines its axes")
    changed = {**section, **{key: value for key, value in options.items() if key != "adjust"}}
    if {"match", "adjust"} & options.keys():
        changed["match"] = match_with_options(section.get("match"), options.get("match"), options.get("adjust"))
    if options.get("search") and isinstance(section.get("search"), dict):
        changed["search"] = section["search"] | options["search"]
    return changed


def read_axes(texts: Iterable[str]) -> dict[str, Any]:
    """Return the axes of --over by key, as written in a recipe. Raises UserError.

    A text is "optimizer.lr=0.002,0.004", or "optimizer.lr={low: 1e-4, high: 1e-2}".
    """
    axes: dict[str, Any] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not (key and equals and values):
            raise UserError(f"--over: got {text!r}; expected key=value,value or key={{low: ..., high: ...}}")
        if key in axes:
            raise UserError(f"--over {key}: is given twice; list all its values in one --over")
        items = parse_yaml(f"[{values}]", f"--over {key}")
        axes[key] = items[0] if len(items) == 1 and isinstance(items[0], dict) else items
    return axes
