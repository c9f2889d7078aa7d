"""Variants that are sized by themselves, so that they cost what the baseline costs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

import pydantic
from pydantic import Discriminator, Tag

from widthwise.config_io import Config, UserError, checked_copy
from widthwise.experiments.matching import LARGEST_MISMATCH, Matched, matched_quantity
from widthwise.recipe.recipe import Recipe
from widthwise.shape.adjusting import Adjust, Knob, depth_at_aspect
from widthwise.shape.kinds import Match
from widthwise.shape.template import ModelTemplate


def _in_turn(parts: Any) -> Any:
    """ "d_model,ffn" -> ("d_model", "ffn")"""
    if isinstance(parts, str):
        parts = [part.strip() for part in parts.split(",")]
    if not isinstance(parts, (list, tuple)):
        return parts
    for place, part in enumerate(parts):
        if part not in get_args(Adjust):
            raise ValueError(f"got {part!r}; allowed: {', '.join(get_args(Adjust))}")
        if part in parts[:place]:
            raise ValueError(f"got {part!r} twice; each part is adjusted once")
    return tuple(parts)


Parts = Annotated[
    tuple[Adjust, ...],
    pydantic.Field(min_length=1),
    pydantic.BeforeValidator(_in_turn, json_schema_input_type=str | list[Adjust]),
]
"""What is adjusted, one part after the other: the later ones meet more closely what the first did roughly."""


class MatchConfig(Config):
    """What variants must match, and what of each is adjusted until it does."""

    quantity: Literal[Match, "training_flops"] = "params"
    adjust: Annotated[
        Annotated[Parts, Tag("all")] | Annotated[dict[str, Parts], Tag("by name")],
        Discriminator(lambda adjust: "by name" if isinstance(adjust, Mapping) else "all"),
    ]
    """The part of every variant but the baseline, or several in turn, or variant -> its parts; the others must match as
    they are."""


MatchSection = Annotated[
    Annotated[Matched, Tag("as it is")] | Annotated[MatchConfig, Tag("adjusted")],
    Discriminator(lambda match: "adjusted" if isinstance(match, (Mapping, MatchConfig)) else "as it is"),
]


def quantity_of(match: MatchSection) -> Matched:
    """The matched quantity."""
    return match.quantity if isinstance(match, MatchConfig) else match


def parts_of(match: MatchSection | None, name: str) -> tuple[Adjust, ...]:
    """What is adjusted of a variant, in turn."""
    if not isinstance(match, MatchConfig):
        return ()
    return match.adjust.get(name, ()) if isinstance(match.adjust, Mapping) else match.adjust


def named_in(match: MatchSection | None) -> list[str]:
    """The variants of which it says something of their own."""
    return list(match.adjust) if isinstance(match, MatchConfig) and isinstance(match.adjust, Mapping) else []


def match_asked(own: Any, quantity: str | None, adjust: str | None) -> Any:
    """A section's match, as data, with what the command line asks for; `none` also ends adjusting."""
    if quantity is None and adjust is None:
        return own
    if isinstance(own, Mapping):
        own_quantity, own_adjust = own.get("quantity", "params"), own.get("adjust")
    else:
        own_quantity, own_adjust = own or "params", None
    quantity = quantity or own_quantity
    if adjust is None and (own_adjust is None or quantity == "none"):
        return quantity
    return {"quantity": quantity, "adjust": own_adjust if adjust is None else adjust}


@dataclass(frozen=True)
class Change:
    """What became of one number of a variant."""

    key: str
    """Its key in the recipe."""
    before: float
    after: float

    def __str__(self) -> str:
        before, after = f"{self.before:.7g}", f"{self.after:.7g}"
        return f"{self.key} stays {after}" if before == after else f"{self.key} {before} -> {after}"


@dataclass(frozen=True)
class Adjustment:
    """What became of a variant."""

    changes: tuple[Change, ...]
    match: Matched
    miss: float
    """How far the quantity of the variant is from the baseline's, as a fraction of it."""

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.changes))}, {self.match} missed by {self.miss:+.3%}"


def adjusted(
    name: str, recipe: Recipe, baseline: Recipe, match: Matched, parts: Sequence[Adjust], aspect: float | None = None
) -> tuple[Recipe, Adjustment]:
    """The variant with one number of each part changed, in turn, so that it is as near as it can be to the baseline.

    aspect: d_model / n_layers; the depth that goes with it is found first. Raises UserError if a part has no such
    number, or if the nearest misses by more than a comparison allows.
    """
    changes: list[Change] = []
    try:
        budget = matched_quantity(baseline, match)
        if aspect is not None:
            recipe, change = _at_depth(recipe, budget, match, aspect)
            changes.append(change)
        for part in parts:
            recipe, change = _nearest(recipe, budget, match, part)
            changes.append(change)
        miss = matched_quantity(recipe, match) / budget - 1
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    if abs(miss) > LARGEST_MISMATCH:
        last = changes[-1]
        raise UserError(
            f"{name}: {match} is {1 + miss:.4f} of the baseline's at the nearest {last.key}, {last.after:.7g}, "
            f"and a matched comparison allows {LARGEST_MISMATCH:.0%}; adjust something else"
        )
    return recipe, Adjustment(tuple(changes), match, miss)


def _nearest(recipe: Recipe, budget: float, match: Matched, part: Adjust) -> tuple[Recipe, Change]:
    """The recipe with the number of one part at which it is nearest to the budget."""
    knob = Knob.of(_template(recipe), part, recipe.seq_len)

    def sized(n_steps: int) -> Recipe:
        return recipe.model_copy(update={"model": knob.at(n_steps)})

    def miss(n_steps: int) -> float:
        return matched_quantity(sized(n_steps), match) / budget - 1

    try:
        asked = abs(matched_quantity(recipe, match) / budget - 1)
    except UserError:  # as a width that is no multiple of the heads it has here
        asked = math.inf
    nearest = knob.nearest(miss) if asked else knob.start
    value = knob.adjustable.value
    if abs(miss(nearest)) < asked:
        return sized(nearest), Change(knob.path, value, knob.value(nearest))
    return recipe, Change(knob.path, value, value)  # the number itself, which may lie between two steps


def _at_depth(recipe: Recipe, budget: float, match: Matched, aspect: float) -> tuple[Recipe, Change]:
    """The recipe with the depth at which a d_model of `aspect` times that is nearest to the budget."""
    template = _template(recipe)
    if not aspect > 0:
        raise UserError(f"aspect: got {aspect!r}; d_model / n_layers must be above 0")

    def miss(model: ModelTemplate) -> float:
        return matched_quantity(recipe.model_copy(update={"model": model}), match) / budget - 1

    n_layers = depth_at_aspect(template, aspect, miss)
    model = checked_copy(template, "model", n_layers=n_layers)
    return recipe.model_copy(update={"model": model}), Change("model.n_layers", template.n_layers, n_layers)


def _template(recipe: Recipe) -> ModelTemplate:
    if not isinstance(recipe.model, ModelTemplate):
        raise UserError("model.layers: every layer is written out; only a model with d_model and n_layers is adjusted")
    if recipe.growth:
        raise UserError("growth: a model that grows in its run is not adjusted; match training_flops by train.steps")
    return recipe.model
