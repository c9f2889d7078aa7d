"""The `ladder:` section of a recipe: every variant at several sizes, each trained on tokens in proportion to its size,
for a scaling law.
"""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pydantic
from pydantic import Field

from widthwise.config_io import Config, UserError, checked_copy, parse
from widthwise.experiments.experiment import Experiment, Point, check_name
from widthwise.experiments.matching import (
    MatchConfig,
    MatchSection,
    check_same_windows,
    check_trainable,
    comparable,
)
from widthwise.experiments.sweep import point_name
from widthwise.model.config import cost_summary
from widthwise.recipe.recipe import Recipe
from widthwise.recipe.train_section import Seeds
from widthwise.records.quantities import OF_MODELS
from widthwise.training.devices import Device
from widthwise.yaml_io import merge, read_recipe, recipe_name

RUNG = "rung"
"""Name of a ladder's axis."""
FEWEST_RUNGS = 3
"""A law fits any two."""


class LadderConfig(Config):
    """The `ladder:` section of a recipe."""

    title: str | None = None
    """Title of the page; default: the name of its folder."""
    rungs: dict[str, dict[str, Any]] = Field(min_length=FEWEST_RUNGS)
    """Name -> changes to the recipe that make a size."""
    variants: dict[str, dict[str, Any]] = Field(min_length=1)
    """Name -> changes on top of those of the rung. The first sets the tokens of a rung; the others must match it."""
    tokens_per_param: pydantic.PositiveFloat | None = None
    """Tokens of a rung per parameter of its first variant, rounded to whole steps; by default the recipe and its rungs
    give the steps."""
    count: Literal["params", "layer_params"] = "params"
    """Which parameters count: all, or those without embedding, head and norms."""
    seeds: Seeds = (1, 2, 3)
    match: MatchSection = MatchConfig()
    """The quantity that the variants of a rung must match within one percent, and the parts of those after the first
    that are adjusted to that end."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "LadderConfig":
        for name in self.variants:
            check_name("variants", name)
        self.match.check_names(self.variants, next(iter(self.variants)))
        return self


def read_ladder(path: Path, overrides: Sequence[str] = (), seeds: Sequence[int] = ()) -> Experiment:
    """Return the ladder of a recipe file, every point checked. seeds: override the file's. Raises UserError."""
    data = read_recipe(path, overrides)
    if "ladder" not in data:
        raise UserError(f"{path}: has no ladder section; list the rungs and variants there")
    section = data.pop("ladder")
    if seeds and isinstance(section, dict):
        section = {**section, "seeds": list(seeds)}
    ladder = parse(LadderConfig, section, f"{path}: ladder")
    points: dict[str, Point] = {}
    for variant in ladder.variants:
        for rung in ladder.rungs:
            point = _point(ladder, data, variant, rung, points)
            if point.name in points:
                raise UserError(f"ladder: two points are named {point.name}; rename a rung or a variant")
            points[point.name] = point
    return Experiment(
        title=recipe_name(path),
        points=points,
        seeds=ladder.seeds,
        match=ladder.match.quantity,
        baseline_group=next(iter(ladder.variants)),
        section=ladder,
        axes={variant: {RUNG: list(ladder.rungs)} for variant in ladder.variants},
    )


def _point(
    ladder: LadderConfig, data: Mapping[str, Any], variant: str, rung: str, before: Mapping[str, Point]
) -> Point:
    """Return a variant on a rung. before: the points made so far, including those of the first variant."""
    first, values = next(iter(ladder.variants)), {RUNG: rung}
    name, adjustment = point_name(variant, values), None
    recipe = parse(Recipe, merge(merge(copy.deepcopy(dict(data)), ladder.rungs[rung]), ladder.variants[variant]), name)
    base = point_name(first, values), (recipe if variant == first else before[point_name(first, values)].recipe)
    if ladder.tokens_per_param is not None:
        n_params = OF_MODELS[ladder.count].of_cost(cost_summary(base[1].explicit_model, base[1].seq_len))
        n_steps = max(1, round(ladder.tokens_per_param * n_params / base[1].tokens_per_step))
        train = checked_copy(recipe.train, f"{name}: train", steps=n_steps)
        recipe = checked_copy(recipe, name, train=train)
    if variant == first:
        check_trainable(recipe, name)
    else:
        recipe, adjustment = comparable(name, recipe, variant, base, ladder.match, "ladder")
    if before:
        reference = next(iter(before.values()))
        check_same_windows(name, recipe, reference.name, reference.recipe)
    return Point(name, recipe, variant, values, adjustment)


def ladder_workload(plan: Experiment, clock: Device | None, days: float | None = None) -> dict[str, Any]:
    """Return the planned work as data: a row for one run of each point, totals over all seeds. Hours only with a clock.
    days: the longest a run may take; remarks name the rungs whose run takes longer."""
    section, work = plan.section, plan.workload(n_runs=1)
    assert isinstance(section, LadderConfig)
    hours_per_flop = None if clock is None else 1 / clock.flops_per_second / 3600
    for each in (work, *work["points"]):
        each["hours"] = None if hours_per_flop is None else hours_per_flop * each["training_flops"]
    remarks = [
        f"{row['name']}: a run takes {row['hours'] / 24:.3g} days, more than the {days:g} there are; a law needs "
        "its last rung, so make it smaller or give it fewer tokens"
        for row in work["points"]
        if days is not None and row["hours"] is not None and row["hours"] > 24 * days
    ]
    device = None if clock is None else clock.name
    described = {"count": section.count, "tokens_per_param": section.tokens_per_param, "device": device}
    return {**work, **described, "remarks": remarks}
