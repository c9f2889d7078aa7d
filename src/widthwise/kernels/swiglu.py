"""The gate of a SwiGLU, silu(gate) * up, which keeps only gate and up for the backward pass."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from widthwise.kernels.dispatch import refuse_double_backward, use_fused


def reference_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) * up, elementwise. gate, up: (..., d_ff) -> (..., d_ff)."""
    return silu(gate) * up


class _SwiGLU(torch.autograd.Function):
    """Recompute silu(gate) in the backward pass instead of keeping it."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        refuse_double_backward()
        gate, up = ctx.saved_tensors
        return torch.ops.aten.silu_backward(grad * up, gate), silu(gate).mul_(grad)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Compute `reference_swiglu`."""
    if not use_fused(gate):
        return reference_swiglu(gate, up)
    return _SwiGLU.apply(gate, up) if torch.is_grad_enabled() else silu(gate).mul_(up)
