"""Baking the model of a run: kept constants are folded into the weights."""

from dataclasses import replace

from widthwise.config_io import UserError
from widthwise.growth.bake import bake_plan, left_explicit
from widthwise.growth.describe import kept_constants
from widthwise.runs.conversion import Intention, pending, recipe_with
from widthwise.runs.source import Source


def bake_intended(source: Source, one_eps: bool) -> Intention:
    """Plans the model with the constants that its sizes imply. Raises UserError if it has them already."""
    plan = bake_plan(source.model, one_eps)
    changes = tuple(constant.change for constant in kept_constants(replace(plan, new=plan.old), plan.new))
    if not changes:
        raise UserError(f"{source.run.path}: has the constants that its sizes give; there is nothing to bake")
    left = tuple(f"left as it is: {line}" for line in left_explicit(plan.new))
    return Intention("baked", recipe_with(source, plan), plan, changes=changes, notes=(*pending(source), *left))
