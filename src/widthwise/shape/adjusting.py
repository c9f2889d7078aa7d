"""Sizes of a model that a comparison may adjust, and the value that meets a budget."""

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from widthwise.config_io import UserError, checked_copy, mistakes_at
from widthwise.model.ffn.interface import Adjustable
from widthwise.shape.rounding import TOLERANCE
from widthwise.shape.template import ModelTemplate

Adjust = Literal["ffn", "d_model", "shape"]
"""The part of a model that is adjusted."""


@dataclass(frozen=True)
class Knob:
    """One number of a template, and the templates with other values of it."""

    template: ModelTemplate
    section: str | None
    """The section of the model that holds it; None for the model itself."""
    adjustable: Adjustable

    @classmethod
    def of(cls, template: ModelTemplate, adjust: Adjust, seq_len: int) -> "Knob":
        """Raises UserError where that part of the model has nothing to adjust."""
        if adjust == "d_model":
            return cls(template, None, Adjustable("d_model", template.d_model, step=_width_quantum(template)))
        widths = template.resolve(seq_len).widths
        with mistakes_at(f"model.{adjust}"):
            if adjust == "ffn":
                return cls(template, adjust, template.ffn.adjustable(widths))
            return cls(template, adjust, template.shape.adjustable())

    @property
    def path(self) -> str:
        """Its key in a recipe."""
        return ".".join(filter(None, ["model", self.section, self.adjustable.key]))

    @property
    def start(self) -> int:
        """The value that the template has, in steps, or the nearest whole number of them."""
        return max(1, round(self.adjustable.value / self.adjustable.step))

    def value(self, n_steps: int) -> float:
        """A whole number if the step is one."""
        return n_steps * self.adjustable.step

    def at(self, n_steps: int) -> ModelTemplate:
        """Raises UserError for a value that is not allowed."""
        change: dict[str, Any] = {self.adjustable.key: self.value(n_steps)}
        if self.section is not None:
            section = checked_copy(getattr(self.template, self.section), f"model.{self.section}", **change)
            change = {self.section: section}
        return checked_copy(self.template, "model", **change)

    def nearest(self, miss: Callable[[int], float]) -> int:
        """The value, in steps, at which the model is nearest to a budget.

        miss: value in steps -> how far its model is from the budget, with the sign. It may raise UserError where there
        is no such model.
        """

        missed = or_nan(miss)
        limits = self.adjustable.limits
        if limits is None:
            return nearest_size(missed, self.start)
        lowest, highest = (limit / self.adjustable.step for limit in limits)
        return closest_size(missed, self.start, range(math.floor(lowest) + 1, math.ceil(highest)), TOLERANCE)


def depth_at_aspect(template: ModelTemplate, aspect: float, miss: Callable[[ModelTemplate], float]) -> int:
    """The n_layers at which a model is nearest to a budget, its d_model being `aspect` times that, in whole heads.

    miss: how far a model is from the budget, with the sign; it may raise UserError where there is no such model.
    """
    quantum = _width_quantum(template)

    def missed(n_layers: int) -> float:
        d_model = max(1, round(aspect * n_layers / quantum)) * quantum
        return miss(checked_copy(template, "model", n_layers=n_layers, d_model=d_model))

    return nearest_size(or_nan(missed), template.n_layers)


def _width_quantum(template: ModelTemplate) -> int:
    """Return the quantum of every d_model: whole heads and, with hyper-connections, whole blocks."""
    return math.lcm(template.attention.quantum, template.residual.d_model_quantum)


def or_nan(miss: Callable[[int], float]) -> Callable[[int], float]:
    """Called once for each size; NaN where there is no model of that size."""

    @cache
    def missed(size: int) -> float:
        try:
            return miss(size)
        except UserError:
            return math.nan

    return missed


NEIGHBOURS = 4
"""Sizes on either side of the nearest that are looked at, because rounded widths can make costs fall where they should
rise."""
LARGEST = 2**40
"""The size at which the search ends if nothing that grows meets the budget."""


def nearest_size(miss: Callable[[int], float], start: int) -> int:
    """The whole number, at least 1, whose miss is nearest to zero: no other within NEIGHBOURS of it is nearer.

    miss: signed, rising with the size but for the unevenness of rounding; NaN where there is no model of that size.
    start: an existing size.
    """
    low, high = start, start
    while miss(high) < 0 and high < LARGEST:
        low, high = high, 2 * high
    while low > 0 and miss(low) > 0:
        low, high = low // 2, low
    while high - low > 1:
        middle = (low + high) // 2
        # A missing size is beyond the existing ones: above the start on the way up, below it down.
        is_low = miss(middle) < 0 if low >= start else not miss(middle) > 0
        low, high = (middle, high) if is_low else (low, middle)
    best = _least([start, low, high], miss)
    while (better := _least([best, *range(best - NEIGHBOURS, best + NEIGHBOURS + 1)], miss)) != best:
        best = better
    return best


def closest_size(miss: Callable[[int], float], start: int, sizes: range, tolerance: float) -> int:
    """The size closest to `start` whose miss is within the tolerance; where there is none, the one with the least."""
    by_distance = sorted(sizes, key=lambda size: abs(size - start))
    close = (size for size in by_distance if abs(miss(size)) <= tolerance)
    return next(itertools.chain(close, [_least([start, *by_distance], miss)]))


def _least(sizes: Iterable[int], miss: Callable[[int], float]) -> int:
    """The first of those with the least miss."""
    return min((size for size in sizes if size > 0), key=lambda size: (math.isnan(miss(size)), abs(miss(size))))
