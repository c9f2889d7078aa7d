"""Rotary positions with a hand-written backward pass, which turns the gradient back by the same angles.

The halves of a head are added where they belong, so that no tensor with swapped halves is made.
"""

from typing import Any

import torch
from torch import Tensor

from widthwise.kernels.dispatch import refuse_double_backward


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        refuse_double_backward()
        return _turned(grad, *ctx.saved_tensors, sign=-1), None, None


def _turned(x: Tensor, cos: Tensor, sin: Tensor, sign: int = 1) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, cos.dtype))
    turned = wide * cos
    halves, others, sines = (tensor.chunk(2, dim=-1) for tensor in (turned, wide, sin))
    for half, other, sine in zip(halves, reversed(others), sines, strict=True):
        half.addcmul_(other, sine, value=sign)
    return turned.to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """See `reference.rotate`."""
    return _Rotate.apply(x, cos, sin) if torch.is_grad_enabled() else _turned(x, cos, sin)
