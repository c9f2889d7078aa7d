"""The continuous widths of a schedule that cost exactly what a uniform model costs."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from widthwise.config_io import UserError
from widthwise.shape.schedule import Schedule

NARROWEST = 1.0
"""The least end width that the solver accepts, in channels; of the first layer where ends differ."""


class WidthCost(ABC):
    """What the layers of a model cost, as a function of their widths, in parameters, FLOPs or bytes.

    The cost of a layer grows with its width, and depends on its width and its place alone. What is the same for all
    widths may be left out.
    """

    def __init__(self, d_model: int):
        """d_model: width of the uniform model whose cost is the budget."""
        self.d_model = d_model

    @abstractmethod
    def per_layer(self, widths: np.ndarray) -> np.ndarray:
        """(n_layers,) widths, whole or not -> (n_layers,) costs."""

    def total(self, widths: np.ndarray) -> float:
        """The cost of all layers together."""
        return float(self.per_layer(widths).sum())

    def uniform(self, n_layers: int) -> float:
        """The cost of n_layers layers of width d_model: the budget that shapes are matched to."""
        return self.total(np.full(n_layers, float(self.d_model)))


def solve_widths(schedule: Schedule, cost: WidthCost, n_layers: int, turn_layer: int, turn_ratio: float) -> np.ndarray:
    """(n_layers,) widths in channels, not rounded, that cost as much as n_layers layers of width cost.d_model.

    The width at `turn_layer` (counted from 1) is turn_ratio * cost.d_model. The cost grows with the end width, so at
    most one fits. Raises UserError where the schedule cannot turn there, nothing is left for the ends, or an end is on
    the wrong side of the turn.
    """
    schedule.check_turn_layer(n_layers, turn_layer)
    schedule.check_turn_ratio(turn_ratio)

    def widths(end_width: float, ratio: float = turn_ratio) -> np.ndarray:
        return schedule.widths(end_width, ratio * cost.d_model, n_layers, turn_layer)

    budget = cost.uniform(n_layers)
    if cost.total(widths(NARROWEST)) > budget:
        largest = _rising_root(lambda ratio: cost.total(widths(NARROWEST, ratio)) / budget - 1, 0.0)
        raise UserError(
            f"model.shape.{schedule.ratio_key}: {turn_ratio:g} times d_model leaves nothing of the budget of "
            f"{n_layers} layers for the ends; the largest feasible ratio is {math.floor(largest * 1000) / 1000:g}"
        )
    solved = widths(_rising_root(lambda end_width: cost.total(widths(end_width)) / budget - 1, NARROWEST))
    schedule.check_ends(solved, turn_layer)
    return solved


def scaled_widths(curve: np.ndarray, cost: WidthCost, budget: float) -> np.ndarray:
    """(n_layers,) widths in proportion to `curve` that cost as much as a budget, of what `cost` counts.

    Raises UserError where not even the narrowest are within the budget.
    """
    curve = curve / curve.max()
    if cost.total(NARROWEST * curve) > budget:
        raise UserError("model.shape.widths: the narrowest layers on this curve cost more than the uniform model")
    return curve * _rising_root(lambda widest: cost.total(widest * curve) / budget - 1, NARROWEST)


def _rising_root(function: Callable[[float], float], low: float) -> float:
    """The root above `low` of a rising function that is not positive at `low`, to the last digit of a float.

    By bisection, some 60 calls, because importing scipy's faster methods takes as long as a thousand.
    """
    high = max(2 * low, 1.0)
    while function(high) < 0:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return high
