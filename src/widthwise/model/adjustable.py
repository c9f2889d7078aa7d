"""A size that part of a model offers, so that the model can be adjusted to a budget."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Adjustable:
    """A number of a recipe that makes a model larger or smaller."""

    key: str
    """What its section of the recipe calls it."""
    value: float
    """What it is now."""
    step: float
    """The smallest change that may alter the model; values are multiples of it."""
    limits: tuple[float, float] | None = None
    """Open interval of a number that moves costs either way, so that all its values are looked at; None: costs grow
    with it."""
