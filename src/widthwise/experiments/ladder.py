"""A ladder: every variant at several sizes, each trained on tokens in proportion to its size, for a scaling law.

It is a sweep whose groups are the variants and whose points are the rungs, planned before anything is trained.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pydantic
from pydantic import Field

from widthwise.bundled import recipe_name
from widthwise.config_io import Config, UserError, checked_copy, nearest_hint, parse
from widthwise.experiments.adjusting import Adjustment, MatchSection, adjusted, named_in, parts_of, quantity_of
from widthwise.experiments.matching import Matched, check_matched
from widthwise.experiments.sweep.config import SweepConfig
from widthwise.experiments.sweep.plan import SweepPlan
from widthwise.merging import merge
from widthwise.model.config import cost_summary
from widthwise.recipe.recipe import Recipe
from widthwise.recipe.train_section import Seeds
from widthwise.records.quantities import OF_MODELS
from widthwise.runs.devices import Device
from widthwise.yaml_io import read_recipe

RUNG = "rung"
"""Name of a ladder's axis."""
FEWEST_RUNGS = 3
"""A law fits any two."""


class LadderConfig(Config):
    """The `ladder:` section of a recipe."""

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
    match: MatchSection = "params"
    """What the variants of a rung must have in common, within one percent, and what of those after the first is
    adjusted to that end."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "LadderConfig":
        first, *others = self.variants
        for name in named_in(self.match):
            if name == first:
                raise ValueError(f"match.adjust: got {name!r}, the first variant, to which the others are adjusted")
            if name not in others:
                raise ValueError(f"match.adjust: got {name!r}; {nearest_hint(name, others)}")
        return self

    @property
    def first(self) -> str:
        """The variant that the others of a rung must match."""
        return next(iter(self.variants))


@dataclass(frozen=True)
class LadderPlan(SweepPlan):
    """A sweep over rungs: a value of its axis is the name of a rung, which changes several keys at once."""

    ladder: LadderConfig

    @property
    def matched(self) -> Matched:
        return quantity_of(self.ladder.match)

    @property
    def baseline_group(self) -> str:
        """Every rung is compared with that of the first variant."""
        return self.ladder.first

    def _recipe(self, name: str, group: str, values: Mapping[str, Any]) -> Recipe:
        rung = values[RUNG]
        recipe = self._at_rung(name, group, rung)
        if self.ladder.tokens_per_param is None:
            return recipe
        first = self.ladder.first
        n_steps = self._n_steps(recipe if group == first else self._at_rung(f"{first}-{rung}", first, rung))
        return checked_copy(recipe, name, train=checked_copy(recipe.train, f"{name}: train", steps=n_steps))

    def _adjusted(self, name: str, group: str, values: Mapping[str, Any]) -> tuple[Recipe, Adjustment | None]:
        recipe, first, match = self._recipe(name, group, values), self.ladder.first, self.ladder.match
        parts = () if group == first else parts_of(match, group)
        if not parts:
            return recipe, None
        return adjusted(name, recipe, self._recipe(f"{first}-{values[RUNG]}", first, values), quantity_of(match), parts)

    def _at_rung(self, name: str, variant: str, rung: str) -> Recipe:
        data = copy.deepcopy(dict(self.data))
        return parse(Recipe, merge(merge(data, self.ladder.rungs[rung]), self.ladder.variants[variant]), name)

    def _n_steps(self, recipe: Recipe) -> int:
        assert self.ladder.tokens_per_param is not None
        n_params = OF_MODELS[self.ladder.count].of_cost(cost_summary(recipe.explicit_model, recipe.seq_len))
        return max(1, round(self.ladder.tokens_per_param * n_params / recipe.tokens_per_step))

    def check_rungs(self) -> None:
        """Raises UserError if the variants of a rung cannot be compared."""
        by_place = {(point.group, point.values[RUNG]): point for point in self.grid.values()}
        for (_, rung), point in by_place.items():
            base = by_place[self.ladder.first, rung]
            advice = "resize it, or say match: none under ladder"
            check_matched({point.name: point.recipe}, base.name, base.recipe, quantity_of(self.ladder.match), advice)


def read_ladder(path: Path, overrides: Sequence[str] = (), seeds: Sequence[int] = ()) -> LadderPlan:
    """The ladder of a recipe file, every point checked. seeds: override the file's. Raises UserError."""
    data = read_recipe(path, overrides)
    if "ladder" not in data:
        raise UserError(f"{path}: has no ladder section; list the rungs and variants there")
    section = data.pop("ladder")
    if seeds and isinstance(section, dict):
        section = {**section, "seeds": list(seeds)}
    ladder = parse(LadderConfig, section, f"{path}: ladder")
    axis = {RUNG: list(ladder.rungs)}
    groups = {name: {"change": change} for name, change in ladder.variants.items()}
    swept = {"over": axis, "groups": groups, "seeds": list(ladder.seeds)}
    plan = LadderPlan(recipe_name(path), parse(SweepConfig, swept, f"{path}: ladder"), data, ladder)
    plan.check_rungs()
    return plan


def ladder_workload(plan: LadderPlan, clock: Device | None, days: float | None = None) -> dict[str, Any]:
    """The planned work as data: one row per point, for one run; totals over all seeds. Hours only with a
    clock. days: what a run may take; remarks name the rungs whose run takes longer."""
    n_seeds = len(plan.config.seeds)
    rows = [
        {
            "name": point.name,
            "group": point.group,
            "rung": point.values[RUNG],
            **_costs(point.recipe),
            "hours": None if clock is None else point.recipe.training_flops / clock.flops_per_second / 3600,
        }
        for point in plan.grid.values()
    ]
    total = n_seeds * sum(row["training_flops"] for row in rows)
    return {
        "title": plan.title,
        "count": plan.ladder.count,
        "tokens_per_param": plan.ladder.tokens_per_param,
        "seeds": list(plan.config.seeds),
        "device": None if clock is None else clock.name,
        "points": rows,
        "n_runs": n_seeds * len(rows),
        "training_flops": total,
        "hours": None if clock is None else total / clock.flops_per_second / 3600,
        "remarks": [] if days is None else _too_long(rows, 24 * days),
    }


def _too_long(rows: Sequence[Mapping[str, Any]], hours: float) -> list[str]:
    """One line for each point whose run does not fit into the hours."""
    return [
        f"{row['name']}: a run takes {row['hours'] / 24:.3g} days, more than the {hours / 24:g} there are; a law needs "
        "its last rung, so make it smaller or give it fewer tokens"
        for row in rows
        if row["hours"] is not None and row["hours"] > hours
    ]


def _costs(recipe: Recipe) -> dict[str, Any]:
    summary = cost_summary(recipe.final_model, recipe.seq_len)
    return {
        **{name: OF_MODELS[name].of_cost(summary) for name in ("params", "layer_params", "average_width", "kv_bytes")},
        "steps": recipe.train.steps,
        "tokens": recipe.n_tokens,
        "training_flops": recipe.training_flops,
        "pflops_days": recipe.pflops_days,
    }
