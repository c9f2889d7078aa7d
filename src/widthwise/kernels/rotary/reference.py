"""Rotary positions in plain torch. Source: Su et al. 2021, arXiv:2104.09864."""

import torch
from torch import Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates each pair (x_i, x_{i + head_dim/2}) by the angle of its position and frequency.

    x: (B, T, n_heads, head_dim); cos, sin: (B or 1, T, 1, head_dim) from `model.rope.rope_table`, the sines negative in
    the first half -> x's shape and type.
    """
    wide = x.to(torch.promote_types(x.dtype, cos.dtype))
    first, second = wide.chunk(2, dim=-1)
    return torch.addcmul(wide * cos, torch.cat((second, first), dim=-1), sin).to(x.dtype)
