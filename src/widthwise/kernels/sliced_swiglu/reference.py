"""A gated feed-forward of which every token uses the first few units, in plain torch: all units, then a mask."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

Mask = Callable[[Tensor, Tensor], Tensor]
"""Elementwise and differentiable: widths (n, 1), unit centres (m,) -> values (n, m)."""


def unit_centres(start: int, stop: int, like: Tensor) -> Tensor:
    """i + 1/2 for the units start <= i < stop, with the type and device of `like`."""
    return torch.arange(start, stop, dtype=like.dtype, device=like.device) + 0.5


def sliced_swiglu(
    x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, width: Tensor, mask: Mask, margin: float
) -> Tensor:
    """w_down (silu(w_gate x) * (w_up x) * mask(width, c)), where unit i has its centre at c_i = i + 1/2.

    x: (N, d_model), w_gate and w_up: (d_ff, d_model), w_down: (d_out, d_ff), width: (N,), in units, fp32 or wider
    -> (N, d_out), in the autocast type where autocast is on, else x's.

    `margin` >= 0, in units, says what may be skipped: where c_i < width - margin the mask is 1, where c_i > width +
    margin it is 0, and in neither place has it a derivative. A hard mask has margin 0, a linear ramp over T units
    T / 2, a sigmoid infinity. This form, which skips nothing, has no use for it.
    """
    hidden = silu(linear(x, w_gate)) * linear(x, w_up)
    values = mask(width[:, None], unit_centres(0, len(w_gate), width))
    return linear(hidden * values.to(hidden.dtype), w_down)
