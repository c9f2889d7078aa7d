"""Width schedules: how wide each layer is, given the widths at the two ends of a geometric progression."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from widthwise.config_io import UserError


@dataclass(frozen=True)
class Schedule:
    """Widths that run geometrically between an end width and the width at the turn.

    The turn width is chosen, the end width is solved for. Layers count from 1.
    Source: Variable-Width Transformers, arXiv:2606.18246, Appendix A.
    """

    kind: str
    ratios: tuple[float, float]
    """Open interval of the turn width as a fraction of d_model."""
    turn_layers: Callable[[int], range]
    """n_layers -> the layers at which the schedule may turn; empty where there are too few layers."""
    ratio_key: str
    """What a recipe calls the ratio."""
    layer_key: str | None = None
    """What a recipe calls the depth of the turn; None where the kind settles it."""

    def turn_layer(self, n_layers: int, depth: float | None) -> int:
        """The layer nearest to the fraction `depth` of n_layers; None for a kind that leaves no choice.

        Raises UserError where the schedule cannot turn there.
        """
        allowed = self.turn_layers(n_layers)
        assert depth is not None or len(allowed) <= 1, f"kind '{self.kind}' needs a depth"
        turn = allowed.start if depth is None else round(depth * n_layers)
        self.check_turn_layer(n_layers, turn)
        return turn

    def check_turn_layer(self, n_layers: int, turn_layer: int) -> None:
        """Raises UserError, with the allowed layers and fractions, where the schedule cannot turn at this layer."""
        allowed = self.turn_layers(n_layers)
        if not allowed:
            raise UserError(f"model.n_layers: {n_layers} is too few for shape kind '{self.kind}'")
        if turn_layer not in allowed:
            key, first, last = self.layer_key or "kind", allowed[0], allowed[-1]
            raise UserError(
                f"model.shape.{key}: turns at layer {turn_layer} of {n_layers}; kind '{self.kind}' turns at "
                f"layers {first} to {last}, a fraction {first / n_layers:.4g} to {last / n_layers:.4g} of the depth"
            )

    def check_turn_ratio(self, turn_ratio: float) -> None:
        """Raises UserError where the turn width has the wrong size relative to d_model."""
        low, high = self.ratios
        if not low < turn_ratio < high:
            allowed = f"between {low:g} and {high:g}" if np.isfinite(high) else f"above {low:g}"
            raise UserError(
                f"model.shape.{self.ratio_key}: {turn_ratio:g} times d_model; kind '{self.kind}' needs {allowed}"
            )

    def widths(self, end_width: float, turn_width: float, n_layers: int, turn_layer: int) -> np.ndarray:
        """(n_layers,) widths in channels, not rounded; exactly the two given widths at the ends and at the turn."""
        knots = {1: 0.0, n_layers: 0.0, turn_layer: 1.0}  # an end that is the turn counts as the turn
        layers, values = zip(*sorted(knots.items()), strict=True)
        nearness = np.interp(np.arange(1, n_layers + 1), layers, values)
        return end_width ** (1.0 - nearness) * turn_width**nearness


def _inside(n_layers: int) -> range:
    return range(2, n_layers)


def _first(n_layers: int) -> range:
    return range(1, min(2, n_layers))


def _last(n_layers: int) -> range:
    return range(max(2, n_layers), n_layers + 1)


SCHEDULES: dict[str, Schedule] = {
    schedule.kind: schedule
    for schedule in (
        Schedule("x", (0.0, 1.0), _inside, "bottleneck_width", "bottleneck_layer"),
        Schedule("diamond", (1.0, np.inf), _inside, "peak_width", "peak_layer"),
        Schedule("growing", (0.0, 1.0), _first, "narrow_width"),
        Schedule("narrowing", (0.0, 1.0), _last, "narrow_width"),
    )
}
"""Every kind of shape that has to be solved for."""
