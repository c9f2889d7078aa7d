"""The `sweep:` section of a recipe: axes, each a recipe key with a list of values or a range, groups, and sizes."""

import itertools
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
from pydantic import Discriminator, Field, Tag

from widthwise.config_io import Config
from widthwise.experiments.matching import ExperimentSection, MatchConfig, MatchSection, NamedChanges, without_null
from widthwise.experiments.plan import ALLOWED_IN_NAMES, MOST_POINTS, check_name
from widthwise.mistakes import UserError

if TYPE_CHECKING:
    from optuna import Trial

SEED_KEY = "train.seed"
ASPECT = "aspect"
"""An axis that is not a recipe key: d_model / n_layers of points whose width is solved."""
FEWEST_RUNGS = 3
"""Two points determine a law and leave nothing to test it."""
SIGNIFICANT_DIGITS = 6
"""Precision of a value drawn from a range, so that the name of its point states it in full."""
LONGEST_NAME = 150
"""Characters; file systems allow names of 255 bytes, and the seed is appended."""


def name_part(value: Any) -> str:
    """Return a value as part of a name, in the characters allowed there. Raises ValueError for a mapping."""
    if isinstance(value, Mapping):
        raise ValueError(f"got {json.dumps(value)}; a mapping has no short name; use a group")
    if isinstance(value, (list, tuple)):
        return "+".join(map(name_part, value))
    text = value if isinstance(value, str) else json.dumps(value)
    return "".join(letter if letter in ALLOWED_IN_NAMES else "_" for letter in text)


def point_name(group: str, values: Mapping[str, Any]) -> str:
    """Return the name of a point, "x-0.25-0.3" in group x. Raises UserError if it is too long for a folder."""
    name = "-".join(filter(None, [group, *map(name_part, values.values())]))
    if len(name) > LONGEST_NAME:
        raise UserError(f"sweep: the point {name[:40]}... has a name of {len(name)} letters; use a group")
    return name


class Range(Config):
    """All numbers from `low` to `high`, both included; whole numbers if both are whole. Only for a search."""

    low: int | float
    high: int | float
    log: bool = False
    """Sample uniformly on a logarithmic scale."""
    step: int | None = Field(default=None, gt=0)
    """Step between whole numbers, counted from `low`; default 1."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "Range":
        if not self.low < self.high:
            raise ValueError(f"low: got {self.low}; must be less than high = {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"low: got {self.low}; a logarithmic scale needs values above 0")
        is_whole = isinstance(self.low, int) and isinstance(self.high, int)
        if self.step is not None and (self.log or not is_whole):
            raise ValueError(f"step: got {self.step}; needs whole low and high, and no log")
        return self

    def suggest(self, trial: "Trial", name: str) -> Any:
        """Return the value that the sampler of a search chooses for a trial. name: of the parameter in the study."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(name, self.low, self.high, step=self.step or 1, log=self.log)
        value = trial.suggest_float(name, self.low, self.high, log=self.log)
        rounded = float(f"{value:.{SIGNIFICANT_DIGITS}g}")
        return min(max(rounded, float(self.low)), float(self.high))


def _checked_axis(data: Any) -> Any:
    """Return a list of values as a tuple. Raises ValueError for anything but distinct values or a range."""
    if isinstance(data, (list, tuple)):
        if not data:
            raise ValueError("got []; expected at least one value")
        if len(set(map(name_part, data))) < len(data):
            raise ValueError(f"got {list(data)}; values must be distinct, also as parts of a name")
        return tuple(data)
    if isinstance(data, (Mapping, Range)):
        return data
    raise ValueError(f"got {data!r}; expected a list of values, or a range {{low: ..., high: ..., log: true}}")


Axis = Annotated[
    Annotated[tuple[Any, ...], Tag("values")] | Annotated[Range, Tag("range")],
    Discriminator(lambda axis: "values" if isinstance(axis, tuple) else "range"),
    pydantic.BeforeValidator(_checked_axis, json_schema_input_type=list[Any] | Range),
]
"""All values of a grid, or the choices of a search; or a range."""


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


class SweepConfig(ExperimentSection):
    """The `sweep:` section of a recipe."""

    changes_key = "groups"
    rungs: NamedChanges = Field(default_factory=dict)
    """Name of a size -> changes to the recipe; null drops a size of an extended recipe. Every group is trained at every
    size, must match the first group there, and is compared with it."""
    tokens_per_param: pydantic.PositiveFloat | None = None
    """Tokens of a rung per parameter of its first group, rounded to whole steps; default: by the steps."""
    count: Literal["params", "layer_params"] = "params"
    """Counted parameters: all, or without embedding, head and norms."""
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
    match: MatchSection | None = None
    """Quantity that every point must match with the baseline within one percent, and the parts of all points, or of a
    group, adjusted to reach it; default: params if there is a baseline."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "SweepConfig":
        check_name("baseline_name", self.baseline_name)
        for name in self.groups:
            check_name("groups", name)
        if self.tokens_per_param is not None and not self.rungs:
            raise ValueError("tokens_per_param: needs rungs")
        if self.rungs:
            if len(self.rungs) < FEWEST_RUNGS:
                raise ValueError(
                    f"rungs: got {len(self.rungs)}; must be at least {FEWEST_RUNGS}, because a law fits any two"
                )
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

    def combinations(self) -> list[tuple[str, dict[str, Any]]]:
        """Return group and values of every point of a grid. Raises UserError for a range, or more than MOST_POINTS."""
        grids = dict[str, list[tuple[Any, ...]]]()
        for group, axes in self.axes.items():
            grids[group] = []
            for key, axis in axes.items():
                if isinstance(axis, Range):
                    raise UserError(
                        f"sweep: {self._where(group)}.{key}: got a range; a grid needs a list of values, or add "
                        "search: {n_trials: ...}"
                    )
                grids[group].append(axis)
        n_points = sum(math.prod(map(len, lists)) for lists in grids.values())
        if n_points > MOST_POINTS:
            raise UserError(f"sweep: a grid of {n_points:,} points; must be at most {MOST_POINTS:,}, or add search")
        points = list[tuple[str, dict[str, Any]]]()
        for group, lists in grids.items():
            points += [(group, dict(zip(self.axes[group], values))) for values in itertools.product(*lists)]
        return points

    def _where(self, group: str) -> str:
        """Return the path of the axes of a group in the section, for messages."""
        has_axes = group in self.groups and self.groups[group].over is not None
        return f"groups.{group}.over" if has_axes else "over"

    def axes_as_data(self) -> dict[str, dict[str, Any]]:
        """Return group -> key -> list of values, or a range as a mapping."""
        data = dict[str, dict[str, Any]]()
        for group, axes in self.axes.items():
            data[group] = {}
            for key, axis in axes.items():
                data[group][key] = axis.model_dump(exclude_none=True) if isinstance(axis, Range) else list(axis)
        return data

    @property
    def matching(self) -> MatchConfig:
        """`match`, or its default."""
        return self.match or MatchConfig(quantity="params" if self.rungs or self.baseline is not None else "none")
