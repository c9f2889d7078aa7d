"""Widths along the depth before rounding: schedules between the ends and a turn, curves through points, and the solver
that makes the layers cost as much as a uniform model.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from widthwise.mistakes import UserError

Progression = Literal["geometric", "arithmetic"]

BETWEEN: dict[Progression, Callable[[np.ndarray, float, np.ndarray], np.ndarray]] = {
    "geometric": lambda ends, turn, nearness: ends ** (1.0 - nearness) * turn**nearness,
    "arithmetic": lambda ends, turn, nearness: ends * (1.0 - nearness) + turn * nearness,
}
"""Widths between an end (nearness 0) and the turn (nearness 1)."""


@dataclass(frozen=True)
class Schedule:
    """Widths that progress from the first layer to the turn, and from there to the last layer.

    The turn width is chosen; the end width is solved. Layers count from 1.
    Source: Variable-Width Transformers, arXiv:2606.18246, Appendix A.
    """

    kind: str
    ratios: tuple[float, float]
    """Open interval of the turn width as a fraction of d_model."""
    turn_layers: Callable[[int], range]
    """n_layers -> layers at which the schedule may turn; empty if there are too few layers."""
    ratio_key: str
    """Key of the ratio in a recipe."""
    layer_key: str | None = None
    """Key of the depth of the turn in a recipe; None if the kind decides it."""
    progression: Progression = "geometric"
    last_over_first: float | None = 1.0
    """Width of the last layer over the first layer's; None: use the same rate on both sides of the turn."""

    def turn_layer(self, n_layers: int, depth: float | None) -> int:
        """Return the layer nearest to the fraction `depth` of n_layers. depth: None if the kind allows one layer only.

        Raises UserError, with the allowed layers and fractions, if the schedule cannot turn there.
        """
        allowed = self.turn_layers(n_layers)
        assert depth is not None or len(allowed) <= 1, f"kind '{self.kind}' needs a depth"
        if not allowed:
            raise UserError(f"model.n_layers: {n_layers} is too few for shape kind '{self.kind}'")
        turn = allowed.start if depth is None else round(depth * n_layers)
        if turn not in allowed:
            first = allowed[0]
            last = allowed[-1]
            raise UserError(
                f"model.shape.{self.layer_key or 'kind'}: turns at layer {turn} of {n_layers}; kind '{self.kind}' "
                f"turns at layers {first} to {last}, a fraction {first / n_layers:.4g} to {last / n_layers:.4g} of the "
                "depth"
            )
        return turn

    def widths(self, end_width: float, turn_width: float, n_layers: int, turn_layer: int) -> np.ndarray:
        """Return real widths in channels, (n_layers,), with exactly turn_width at the turn.

        end_width: of the first layer, and the last is last_over_first times as wide; without last_over_first, of the
        end farther from the turn.
        """
        layers = np.arange(1, n_layers + 1)
        if self.last_over_first is None:
            nearness = 1.0 - np.abs(layers - turn_layer) / max(turn_layer - 1, n_layers - turn_layer)
            return BETWEEN[self.progression](np.full(n_layers, end_width), turn_width, nearness)
        knots = {1: 0.0, n_layers: 0.0, turn_layer: 1.0}  # the turn replaces an end at the same layer
        at, values = zip(*sorted(knots.items()), strict=True)
        nearness = np.interp(layers, at, values)
        ends = np.where(layers > turn_layer, self.last_over_first * end_width, end_width)
        return BETWEEN[self.progression](ends, turn_width, nearness)


SCHEDULES: dict[str, Schedule] = {
    schedule.kind: schedule
    for schedule in (
        Schedule("x", (0.0, 1.0), lambda n: range(2, n), "bottleneck_width", "bottleneck_layer"),
        Schedule("diamond", (1.0, np.inf), lambda n: range(2, n), "peak_width", "peak_layer"),
        Schedule("growing", (0.0, 1.0), lambda n: range(1, 2) if n > 1 else range(0), "narrow_width"),
        Schedule("narrowing", (0.0, 1.0), lambda n: range(n, n + 1) if n > 1 else range(0), "narrow_width"),
    )
}
"""Kind of a shape -> its schedule."""


NARROWEST = 1.0
"""Smallest `end_width`, and smallest width of the widest layer on a curve, in channels."""


class WidthCost(ABC):
    """Costs of the layers of a model as a function of their widths, in parameters, FLOPs or bytes.

    The cost of a layer grows with its width, and depends only on its width and position. Constant costs may be left
    out.
    """

    d_model: int
    """Width of the uniform model, whose cost is the budget."""

    @abstractmethod
    def per_layer(self, widths: np.ndarray) -> np.ndarray:
        """Return the costs of layers with these real widths, (n_layers,)."""

    def total(self, widths: np.ndarray) -> float:
        """Return the cost of all layers together."""
        return float(self.per_layer(widths).sum())

    def uniform(self, n_layers: int) -> float:
        """Return the cost of n_layers layers of width d_model, the budget of a shape."""
        return self.total(np.full(n_layers, float(self.d_model)))


def solve_widths(schedule: Schedule, cost: WidthCost, n_layers: int, turn_layer: int, turn_ratio: float) -> np.ndarray:
    """Return real widths in channels, (n_layers,), that cost as much as n_layers layers of width cost.d_model.

    The width at `turn_layer` (counted from 1) is turn_ratio * cost.d_model. The cost grows with the end width, so at
    most one fits. turn_layer: from `Schedule.turn_layer`. Raises UserError for a ratio outside of `Schedule.ratios`, if
    no budget remains for the ends, and if an end has the wrong size relative to the turn.
    """
    low, high = schedule.ratios
    if not low < turn_ratio < high:
        allowed = f"between {low:g} and {high:g}" if np.isfinite(high) else f"above {low:g}"
        got = f"model.shape.{schedule.ratio_key}: {turn_ratio:g} times d_model"
        raise UserError(f"{got}; kind '{schedule.kind}' needs {allowed}")

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
    first = solved[0]
    turn = solved[turn_layer - 1]
    last = solved[-1]
    turn_is_widest = low >= 1
    is_wrong = max(first, last) > turn if turn_is_widest else min(first, last) < turn
    if is_wrong:  # possible if the ends have different widths
        side = "narrower" if turn_is_widest else "wider"
        raise UserError(
            f"model.shape.last_over_first: got {schedule.last_over_first:g}; makes the ends {first:.4g} and {last:.4g} "
            f"channels wide; kind '{schedule.kind}' needs both {side} than its turn, {turn:.4g}"
        )
    return solved


def along(points: Sequence[float], n_layers: int) -> np.ndarray:
    """Interpolate linearly between points that divide the depth evenly: (n_layers,)."""
    return np.interp(np.linspace(0, 1, n_layers), np.linspace(0, 1, len(points)), points)


def shares(points: Sequence[float], n_layers: int, is_framed: bool) -> np.ndarray:
    """Interpolate as `along`, and divide by the mean: shares of a uniform layer's size, (n_layers,).

    is_framed: the first and last layer get 1, and the points apply to the layers between. Raises ValueError if there
    are none.
    """
    n_between = n_layers - 2 if is_framed else n_layers
    if n_between < 1:
        raise ValueError(f"n_layers: {n_layers} is too few for a profile with framed: true")
    sizes = along(points, n_between)
    sizes = sizes / sizes.mean()
    return np.concatenate([[1.0], sizes, [1.0]]) if is_framed else sizes


def scaled_widths(curve: np.ndarray, cost: WidthCost, budget: float) -> np.ndarray:
    """Return real widths in proportion to `curve`, (n_layers,), whose cost is the budget.

    Raises UserError if the layers exceed the budget even if the widest is NARROWEST.
    """
    curve = curve / curve.max()
    if cost.total(NARROWEST * curve) > budget:
        raise UserError("model.shape.widths: the narrowest layers on this curve cost more than the uniform model")
    return curve * _rising_root(lambda widest: cost.total(widest * curve) / budget - 1, NARROWEST)


def _rising_root(function: Callable[[float], float], low: float) -> float:
    """Return the root above `low` of a rising function that is not positive at `low`, to the last digit of a float.

    Bisection needs about 60 calls. Importing SciPy's faster methods takes as long as a thousand calls.
    """
    high = max(2 * low, 1.0)
    while function(high) < 0:
        low = high
        high = 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return high
