"""Rotary position embedding. Source: Su et al. 2021, arXiv:2104.09864."""

import torch
from torch import Tensor


def rope_table(positions: Tensor, head_dim: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines of the angles position * base^(-2i / head_dim), in fp32 (fp64 if that is the default).

    positions: integers (B, T) or (1, T) -> the factors of `rotate`, two tensors (B or 1, T, 1, head_dim): the
    cosines twice over, and the sines, negative in the first half.
    """
    exponents = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float64) / head_dim
    angles = positions.to(torch.float64)[:, :, None, None] * base**-exponents
    dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns the pair (x_i, x_{i + head_dim/2}) by the angle of its position and i.

    x: (B, T, n_heads, head_dim); cos, sin: (B or 1, T, 1, head_dim) from `rope_table` -> x's shape and type.
    """
    wide = x.to(torch.promote_types(x.dtype, cos.dtype))
    first, second = wide.chunk(2, dim=-1)
    return torch.addcmul(wide * cos, torch.cat((second, first), dim=-1), sin).to(x.dtype)
