"""The gate of a SwiGLU with a hand-written backward pass that recomputes silu(gate) instead of keeping it."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from widthwise.kernels.dispatch import refuse_double_backward


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        refuse_double_backward()
        gate, up = ctx.saved_tensors
        grad_gate = torch.ops.aten.silu_backward(grad * up, gate)
        return grad_gate, silu(gate).mul_(grad)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """See `reference.swiglu`."""
    if not torch.is_grad_enabled():
        return silu(gate).mul_(up)
    return _SwiGLU.apply(gate, up)
