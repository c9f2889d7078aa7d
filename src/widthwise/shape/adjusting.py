"""Sizes of a model that a comparison can adjust, and the search for the value that meets a budget."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from widthwise.config_io import checked_copy, mistakes_at
from widthwise.mistakes import UserError
from widthwise.model.ffn.interface import Adjustable
from widthwise.shape.template import ModelTemplate

Adjust = Literal["ffn", "d_model"]
"""Part of a model that is adjusted."""


@dataclass(frozen=True)
class Knob:
    """A number of a template that a comparison can adjust."""

    template: ModelTemplate
    section: str | None
    """Section of the model that contains the number; None for the model."""
    adjustable: Adjustable

    @classmethod
    def of(cls, template: ModelTemplate, adjust: Adjust, seq_len: int) -> "Knob":
        """Return the knob of a part of the model. Raise UserError if that part has nothing to adjust."""
        if adjust == "d_model":
            return cls(template, None, Adjustable("d_model", template.d_model, step=_width_quantum(template)))
        widths = template.resolve(seq_len).widths
        with mistakes_at("model.ffn"):
            return cls(template, "ffn", template.ffn.adjustable(widths))

    @property
    def start(self) -> int:
        """The template's value of the number, in steps, rounded to the nearest whole number, at least 1."""
        return max(1, round(self.adjustable.value / self.adjustable.step))

    def at(self, n_steps: int) -> ModelTemplate:
        """Return the template with another value of the number, in steps. Raise UserError if it is not allowed."""
        change: dict[str, Any] = {self.adjustable.key: n_steps * self.adjustable.step}
        if self.section is not None:
            section = checked_copy(getattr(self.template, self.section), f"model.{self.section}", **change)
            change = {self.section: section}
        return checked_copy(self.template, "model", **change)


def depth_at_aspect(template: ModelTemplate, aspect: float, miss: Callable[[ModelTemplate], float]) -> int:
    """Return the n_layers at which a model with d_model = aspect * n_layers, in whole heads, is nearest to a budget.

    miss: signed distance of a model from the budget. It raises UserError if there is no such model.
    """
    quantum = _width_quantum(template)

    def missed(n_layers: int) -> float:
        d_model = max(1, round(aspect * n_layers / quantum)) * quantum
        return miss(checked_copy(template, "model", n_layers=n_layers, d_model=d_model))

    return nearest_size(missed, template.n_layers)


def _width_quantum(template: ModelTemplate) -> int:
    """Return the quantum of every d_model: whole heads and, with hyper-connections, whole blocks."""
    return math.lcm(template.attention.quantum, template.residual.d_model_quantum)


def _or_nan(miss: Callable[[int], float]) -> Callable[[int], float]:
    """Return a cached `miss` that is NaN for sizes at which it raises UserError."""

    @cache
    def missed(size: int) -> float:
        try:
            return miss(size)
        except UserError:
            return math.nan

    return missed


NEIGHBOURS = 4
"""Sizes to try on either side of the nearest one, because costs are not monotone after rounding of widths."""
LARGEST = 2**40
"""Size at which the search ends if no larger size meets the budget."""


def nearest_size(miss: Callable[[int], float], start: int) -> int:
    """Return the whole number, at least 1, with the miss nearest to zero among all within NEIGHBOURS of it.

    miss: signed, rising with the size except for rounding; raises UserError if there is no model of that size. start:
    the size to try first. Raises the UserError of `miss` if no model is found.
    """
    missed = _or_nan(miss)
    low = start
    high = start
    while missed(high) < 0 and high < LARGEST:
        low = high
        high = 2 * high
    while low > 0 and missed(low) > 0:
        high = low
        low = low // 2
    while high - low > 1:
        middle = (low + high) // 2
        # Missing sizes are above all existing ones in an upward search, and below them in a downward search.
        is_low = missed(middle) < 0 if low >= start else not missed(middle) > 0
        low, high = (middle, high) if is_low else (low, middle)
    best = _nearest([start, low, high], missed)
    while (better := _nearest([best, *range(best - NEIGHBOURS, best + NEIGHBOURS + 1)], missed)) != best:
        best = better
    if math.isnan(missed(best)):
        miss(best)  # raises the reason
    return best


def closest_size(miss: Callable[[int], float], start: int, sizes: range, tolerance: float) -> int:
    """Return the size closest to `start` with a miss within the tolerance, or else the one with the smallest miss.

    miss: signed; raises UserError if there is no model of that size. Raises that error if there is a model of no size.
    """
    missed = _or_nan(miss)
    by_distance = sorted(sizes, key=lambda size: abs(size - start))
    close = (size for size in by_distance if abs(missed(size)) <= tolerance)
    best = next(close, None) or _nearest([start, *by_distance], missed)
    if math.isnan(missed(best)):
        miss(best)  # raises the reason
    return best


def _nearest(sizes: Iterable[int], missed: Callable[[int], float]) -> int:
    """Return the positive size with the smallest miss, the first of several."""
    return min((size for size in sizes if size > 0), key=lambda size: (math.isnan(missed(size)), abs(missed(size))))
