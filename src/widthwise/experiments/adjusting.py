"""Variants of a comparison that are sized by themselves, so that they cost what the baseline costs."""

from dataclasses import dataclass

from widthwise.config_io import UserError
from widthwise.experiments.matching import LARGEST_MISMATCH, Matched, matched_quantity
from widthwise.recipe.recipe import Recipe
from widthwise.shape.adjusting import Adjust, Knob
from widthwise.shape.template import ModelTemplate


@dataclass(frozen=True)
class Adjustment:
    """What became of one number of a variant."""

    key: str
    """Its key in the recipe."""
    before: float
    after: float
    match: Matched
    miss: float
    """How far the quantity of the variant is from the baseline's, as a fraction of it."""

    def __str__(self) -> str:
        return f"{self.key} {self.before:.7g} -> {self.after:.7g}, {self.match} missed by {self.miss:+.3%}"


def adjusted(name: str, recipe: Recipe, baseline: Recipe, match: Matched, adjust: Adjust) -> tuple[Recipe, Adjustment]:
    """The variant with one number of its model changed so that it is as near as it can be to the baseline.

    Raises UserError if it has no such number, or if the nearest misses by more than a comparison allows.
    """
    try:
        knob = _knob(recipe, adjust)
        budget = matched_quantity(baseline, match)
        asked = matched_quantity(recipe, match) / budget - 1
    except UserError as error:
        raise UserError(f"{name}: {error}") from None

    def sized(n_steps: int) -> Recipe:
        return recipe.model_copy(update={"model": knob.at(n_steps)})

    def miss(n_steps: int) -> float:
        return matched_quantity(sized(n_steps), match) / budget - 1

    nearest = knob.nearest(miss) if asked else knob.start
    if abs(miss(nearest)) < abs(asked):
        found = Adjustment(knob.path, knob.adjustable.value, knob.value(nearest), match, miss(nearest))
        recipe = sized(nearest)
    else:  # the number itself, which may lie between two steps
        found = Adjustment(knob.path, knob.adjustable.value, knob.adjustable.value, match, asked)
    if abs(found.miss) > LARGEST_MISMATCH:
        raise UserError(
            f"{name}: {match} is {1 + found.miss:.4f} of the baseline's at the nearest {knob.path}, {found.after:.7g}, "
            f"and a matched comparison allows {LARGEST_MISMATCH:.0%}; adjust something else"
        )
    return recipe, found


def _knob(recipe: Recipe, adjust: Adjust) -> Knob:
    if not isinstance(recipe.model, ModelTemplate):
        raise UserError("model.layers: every layer is written out; only a model with d_model and n_layers is adjusted")
    if recipe.growth:
        raise UserError("growth: a model that grows in its run is not adjusted; match training_flops by train.steps")
    return Knob.of(recipe.model, adjust, recipe.seq_len)
