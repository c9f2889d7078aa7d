"""Rotary positions: queries or keys turned by the angles of their positions.

Source: Su et al. 2021, arXiv:2104.09864.
"""

from typing import Any

import torch
from torch import Tensor

from widthwise.kernels.dispatch import refuse_double_backward, use_fused


def reference_rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates each pair (x_i, x_{i + head_dim/2}) by the angle of its position and frequency.

    x: (B, T, n_heads, head_dim); cos, sin: (B or 1, T, 1, head_dim) from `model.rope.rope_table`, the sines negative in
    the first half -> x's shape and type.
    """
    wide = x.to(torch.promote_types(x.dtype, cos.dtype))
    first, second = wide.chunk(2, dim=-1)
    return torch.addcmul(wide * cos, torch.cat((second, first), dim=-1), sin).to(x.dtype)


class _Rotate(torch.autograd.Function):
    """Turns the gradient back by the same angles."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        refuse_double_backward()
        return _turned(grad, *ctx.saved_tensors, sign=-1), None, None


def _turned(x: Tensor, cos: Tensor, sin: Tensor, sign: int = 1) -> Tensor:
    """x turned by the angles, or with sign -1 back.

    The halves of a head are added where they belong, so that no tensor with swapped halves is made.
    """
    wide = x.to(torch.promote_types(x.dtype, cos.dtype))
    turned = wide * cos
    halves, others, sines = (tensor.chunk(2, dim=-1) for tensor in (turned, wide, sin))
    for half, other, sine in zip(halves, reversed(others), sines, strict=True):
        half.addcmul_(other, sine, value=sign)
    return turned.to(x.dtype)


def fused_rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """See `reference_rotate`."""
    return _Rotate.apply(x, cos, sin) if torch.is_grad_enabled() else _turned(x, cos, sin)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """See `reference_rotate`."""
    return (fused_rotate if use_fused(x) else reference_rotate)(x, cos, sin)
