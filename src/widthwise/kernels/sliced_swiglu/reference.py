"""A SwiGLU in which each token uses only its first few hidden units, in plain torch: all units times a mask."""

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
    x: Tensor,
    w_gate: Tensor,
    w_up: Tensor,
    w_down: Tensor,
    width: Tensor,
    mask: Mask,
    margin: float,
    overlap: float | None = None,
) -> Tensor:
    """w_down (silu(w_gate x) * (w_up x) * mask(width, c)), where unit i has its centre at c_i = i + 1/2.

    x: (N, d_model), w_gate and w_up: (d_ff, d_model), w_down: (d_out, d_ff), width: (N,), in units, fp32 or wider
    -> (N, d_out), in the autocast dtype if autocast is on, else that of x.

    `margin` >= 0, in units, says what may be skipped: the mask is exactly 1 where c_i < width - margin and exactly 0
    where c_i > width + margin, with no derivative in either range. It is 0 for a hard mask, T / 2 for a linear ramp
    over T units, infinite for a sigmoid; a straight-through mask says where its derivative is lost in rounding.
    `overlap` <= margin: how far beyond the width, in units, the mask may be above 0, where its derivative goes further;
    None: as far as the margin. This form skips nothing and ignores both.
    """
    hidden = silu(linear(x, w_gate)) * linear(x, w_up)
    values = mask(width[:, None], unit_centres(0, len(w_gate), width))
    return linear(hidden * values.to(hidden.dtype), w_down)
