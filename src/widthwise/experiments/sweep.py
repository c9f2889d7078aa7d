"""The points of a sweep: on its axes, in a grid or chosen by a sampler, or groups at several sizes."""

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from widthwise.config_io import checked_copy, parse, to_data
from widthwise.experiments.compare import read_plan, with_values
from widthwise.experiments.matching import (
    MatchConfig,
    Point,
    adjusted,
    check_matched,
    check_same_windows,
    check_trainable,
    match_with_options,
)
from widthwise.experiments.plan import Ladder, Sweep
from widthwise.experiments.sweep_section import ASPECT, Range, SweepConfig, name_part, point_name
from widthwise.mistakes import REMOVED, UserError
from widthwise.model.config import cost_summary
from widthwise.recipe.recipe import Recipe, parse_recipe
from widthwise.records.quantities import MODEL_COSTS
from widthwise.yaml_io import apply_overrides, merge, parse_yaml, read_recipe, recipe_name

if TYPE_CHECKING:
    from optuna import Trial

RUNG = "rung"
"""Name of the axis of sizes."""
STUDY_FILE = "study.log"


class SweepSpace:
    """All points on the axes of a sweep.

    n_trials: number of points that a sampler draws, 0 for a grid. reference: the point on whose held-out text all
    points are judged.
    """

    def __init__(self, title: str, config: SweepConfig, data: Mapping[str, Any]):
        """data: the recipe without its sweep section. Raises UserError if the baseline cannot be trained."""
        self.config = config
        self._data = data
        self.baseline: Point | None = None
        if config.baseline is not None:
            recipe = parse(Recipe, merge(data, config.baseline), f"{title}: sweep.baseline")
            self.baseline = Point(config.baseline_name, recipe)
            check_trainable(self.baseline)
        self.n_trials = 0 if config.search is None else config.search.n_trials
        if self.baseline is not None:
            self.reference = self.baseline
        elif config.search is not None:
            self.reference = Point(title, parse_recipe(dict(data), title))
        else:
            self.reference = self._unchecked_point(*config.combinations()[0])

    def grid(self) -> dict[str, Point]:
        """Return name -> point, the baseline first; for a search only the baseline.

        Raises UserError for the first impossible point, or if two points have the same name.
        """
        points = [] if self.baseline is None else [self.baseline]
        if self.config.search is None:
            points += [self.point(group, values) for group, values in self.config.combinations()]
        by_name = dict[str, Point]()
        for point in points:
            if point.name in by_name:
                raise UserError(f"sweep: two points are named {point.name}; rename a group, or the baseline")
            by_name[point.name] = point
        return by_name

    def point(self, group: str, values: Mapping[str, Any]) -> Point:
        """Return a point of a group. Raises UserError, with its name, if it cannot be trained or compared."""
        point = self._unchecked_point(group, values)
        if self.baseline is not None:
            return _matched(point, self.baseline, self.config.matching)
        check_trainable(point)
        check_same_windows(point, self.reference)
        return point

    def _unchecked_point(self, group: str, values: Mapping[str, Any]) -> Point:
        """Return a point of a group; the parts of its recipe may be incompatible."""
        name = point_name(group, values)
        data = copy.deepcopy(merge(self._data, self.config.groups[group].change if group else {}))
        apply_overrides(data, (f"{key}={json.dumps(value)}" for key, value in values.items() if key != ASPECT))
        return Point(name, parse(Recipe, data, name), group, values)

    def draw(self, trial: "Trial") -> tuple[str, dict[str, Any]]:
        """Return the group and values that the sampler chooses for a trial."""
        axes = self.config.axes
        group = trial.suggest_categorical("group", list(axes)) if len(axes) > 1 else next(iter(axes))
        # The name of a parameter includes the group, because groups may have different values of a key.
        names = {key: f"{group}/{key}" if group else key for key in axes[group]}
        values = dict[str, Any]()
        for key, axis in axes[group].items():
            if isinstance(axis, Range):
                values[key] = axis.suggest(trial, names[key])
            else:
                choices = {name_part(value): value for value in axis}
                values[key] = choices[trial.suggest_categorical(names[key], list(choices))]
        return group, values

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


def _matched(point: Point, baseline: Point, match: MatchConfig) -> Point:
    """Return a point, adjusted to its baseline if `match` adjusts its group.

    Raises UserError if the point cannot be trained, or compared with the baseline.
    """
    if parts := match.parts_of(point.group):
        point = adjusted(point, baseline, match.quantity, parts, point.values.get(ASPECT))
    check_trainable(point)
    advice = "resize it, or set match: none under sweep, or --match none"
    check_matched([point], baseline, match.quantity, advice)
    return point


def _rung_points(config: SweepConfig, data: Mapping[str, Any]) -> dict[str, Point]:
    """Return every group at every size, all checked. Changes of the rung apply first, then changes of the group.

    data: the recipe without its sweep section. Raises UserError.
    """
    points: dict[str, Point] = {}
    baselines: dict[str, Point] = {}  # rung -> point of the first group
    for group, section in config.groups.items():
        for rung, size in config.rungs.items():
            name = point_name(group, {RUNG: rung})
            if name in points:
                raise UserError(f"sweep: two points are named {name}; rename a rung or a group")
            recipe = parse(Recipe, merge(merge(data, size), section.change), name)
            if config.tokens_per_param is not None:
                base = baselines[rung].recipe if rung in baselines else recipe
                n_params = MODEL_COSTS[config.count].of_cost(cost_summary(base.explicit_model, base.seq_len))
                n_steps = max(1, round(config.tokens_per_param * n_params / base.tokens_per_step))
                recipe = checked_copy(recipe, name, train=checked_copy(recipe.train, f"{name}: train", steps=n_steps))
            point = Point(name, recipe, group, {RUNG: rung})
            if rung in baselines:
                point = _matched(point, baselines[rung], config.matching)
            else:
                check_trainable(point)
                baselines[rung] = point
            points[name] = point
            check_same_windows(point, next(iter(points.values())))
    return points


@dataclass(frozen=True, kw_only=True)
class Search(Sweep):
    """A sweep whose points, except the baseline, are drawn by a sampler when it runs."""

    storage = STUDY_FILE
    space: SweepSpace

    @property
    def reference(self) -> Recipe:
        return self.space.reference.recipe

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
    fields = {"title": title, "page_title": config.title, "seeds": config.seeds, "match": config.matching.quantity}
    if config.rungs:
        return Ladder(
            **fields,
            points=_rung_points(config, data),
            axes={group: {RUNG: list(config.rungs)} for group in config.groups},
            baseline_group=next(iter(config.groups)),
        )
    space = SweepSpace(title, config, data)
    baseline = None if space.baseline is None else space.baseline.name
    fields |= {"points": space.grid(), "baseline": baseline, "axes": config.axes_as_data()}
    if config.search is None:
        return Sweep(**fields)
    return Search(**fields, space=space, sampler=config.search.sampler)


def _sweep_of_variants(path: Path, overrides: Sequence[str], options: Mapping[str, Any]) -> Sweep:
    """Return every variant of a comparison, adjusted as in the comparison, at every value of the axes."""
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
        points[name] = Point(name, recipe, group, values, variant.adjustment)
        check_trainable(points[name])
    title = f"{plan.title}-sweep"
    return Sweep(title=title, seeds=config.seeds, match=plan.match, points=points, axes=config.axes_as_data())


def _with_options(section: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sweep section changed by options. Raises UserError if --over would change no group."""
    groups = section.get("groups")
    if "over" in options and isinstance(groups, dict):
        have_axes = [isinstance(group, dict) and "over" in group for group in groups.values()]
        if have_axes and all(have_axes):
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
