"""The sizes of a sweep: every group at several sizes, trained on tokens in proportion to the size, for a law."""

import copy
from collections.abc import Mapping
from typing import Any, Literal

import pydantic
from pydantic import Field

from widthwise.config_io import Config, checked_copy, parse
from widthwise.experiments.axes import point_name
from widthwise.experiments.matching import MatchConfig, check_same_windows, check_trainable, comparable
from widthwise.experiments.plan import Point
from widthwise.mistakes import UserError
from widthwise.model.config import cost_summary
from widthwise.recipe.recipe import Recipe
from widthwise.records.quantities import OF_MODELS
from widthwise.yaml_io import merge

RUNG = "rung"
"""Name of the axis of sizes."""
FEWEST_RUNGS = 3
"""Two points determine a law and leave nothing to test it."""


class RungsConfig(Config):
    """The keys of a sweep over sizes."""

    rungs: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Name of a size -> changes to the recipe. Every group is trained at every size, must match the first group there,
    and is compared with it."""
    tokens_per_param: pydantic.PositiveFloat | None = None
    """Tokens of a rung per parameter of its first group, rounded to whole steps; default: by the steps."""
    count: Literal["params", "layer_params"] = "params"
    """Counted parameters: all, or without embedding, head and norms."""

    @pydantic.model_validator(mode="after")
    def _check_rungs(self) -> "RungsConfig":
        if self.rungs and len(self.rungs) < FEWEST_RUNGS:
            raise ValueError(
                f"rungs: got {len(self.rungs)}; must be at least {FEWEST_RUNGS}, because a law fits any two"
            )
        if self.tokens_per_param is not None and not self.rungs:
            raise ValueError("tokens_per_param: needs rungs")
        return self


def rung_points(
    config: RungsConfig, groups: Mapping[str, Mapping[str, Any]], match: MatchConfig, data: Mapping[str, Any]
) -> dict[str, Point]:
    """Return every group at every size, each checked.

    groups: name -> changes, applied after the changes of the rung. data: the recipe without its sweep section. Raises
    UserError.
    """
    first = next(iter(groups))
    points: dict[str, Point] = {}
    for group, change in groups.items():
        for rung, size in config.rungs.items():
            name = point_name(group, {RUNG: rung})
            if name in points:
                raise UserError(f"sweep: two points are named {name}; rename a rung or a group")
            recipe = parse(Recipe, merge(merge(copy.deepcopy(dict(data)), size), change), name)
            base_name = point_name(first, {RUNG: rung})
            base = recipe if group == first else points[base_name].recipe
            if config.tokens_per_param is not None:
                n_params = OF_MODELS[config.count].of_cost(cost_summary(base.explicit_model, base.seq_len))
                n_steps = max(1, round(config.tokens_per_param * n_params / base.tokens_per_step))
                recipe = checked_copy(recipe, name, train=checked_copy(recipe.train, f"{name}: train", steps=n_steps))
            adjustment = None
            if group == first:
                check_trainable(recipe, name)
            else:
                recipe, adjustment = comparable(name, recipe, group, (base_name, base), match, "sweep")
            if points:
                reference = next(iter(points.values()))
                check_same_windows(name, recipe, reference.name, reference.recipe)
            points[name] = Point(name, recipe, group, {RUNG: rung}, adjustment)
    return points
