"""Padding the model of a run to sizes that suit the hardware."""

from widthwise.config_io import UserError
from widthwise.growth.choices import Multiples
from widthwise.growth.pad import PADDING, pad_plan
from widthwise.runs.conversion import Intention, pending, recipe_with
from widthwise.runs.source import Source


def pad_intended(source: Source, multiples: Multiples) -> Intention:
    """Plans the padding of a run's model. Raises UserError if its sizes are multiples already, or cannot be."""
    plan = pad_plan(source.model, multiples)
    if plan.new == plan.old:
        raise UserError(f"{source.run.path}: all sizes are multiples of what was asked for; there is nothing to pad")
    notes = pending(source)
    return Intention("padded", recipe_with(source, plan), plan, reset="new", fresh=PADDING, notes=notes)
