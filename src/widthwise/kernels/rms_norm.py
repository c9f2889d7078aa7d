"""RMSNorm that saves its output in place of its input for the backward pass.

The next matrix product saves the output anyway, so it takes no additional memory.

Source: Zhang and Sennrich 2019, arXiv:1910.07467.
"""

from typing import Any

import torch
from torch import Tensor

from widthwise.kernels.dispatch import compute_dtype, refuse_double_backward, use_fused, widened

SMALLEST_GAIN = 1e-3
"""If any |gain| is smaller, output / gain is too inexact, so the normalised input is saved instead."""


def reference_rms_norm(x: Tensor, gain: Tensor, eps: float, norm_dim: int, stat_width: int | None = None) -> Tensor:
    """Return gain * x / sqrt(sum(x^2) / norm_dim + eps) over the last axis, computed in fp32 or wider.

    x: (..., n), gain: (n,), or (groups, n) for x (..., groups, n) -> the shape of x, in the autocast dtype if autocast
    is on, otherwise in the dtype of x. norm_dim: the divisor, which may differ from n; stat_width: number of leading
    coordinates in the sum of squares; None: all.
    """
    wide = widened(x)
    inverse_rms = torch.rsqrt(wide[..., :stat_width].square().sum(dim=-1, keepdim=True) / norm_dim + eps)
    return (wide * inverse_rms * gain).to(compute_dtype(x))


def _normalise(x: Tensor, eps: float, norm_dim: int) -> tuple[Tensor, Tensor]:
    """Return x * inverse_rms (..., n) and inverse_rms (..., 1), in fp32 or wider, see `reference_rms_norm`."""
    wide = widened(x)
    # vector_norm takes one pass and stays in fp32 under autocast, where a dot product would run in bf16.
    inverse_rms = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(norm_dim).add_(eps).rsqrt_()
    return wide * inverse_rms, inverse_rms


class _RMSNorm(torch.autograd.Function):
    """RMSNorm that saves its output instead of its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float, norm_dim: int, dtype: torch.dtype) -> Tensor:
        normalised, inverse_rms = _normalise(x, eps, norm_dim)
        recoverable = bool(gain.detach().abs().amin() > SMALLEST_GAIN)
        output = (normalised.mul_(gain) if recoverable else normalised * gain).to(dtype)
        ctx.save_for_backward(output, None if recoverable else normalised, inverse_rms, gain)
        ctx.norm_dim = norm_dim
        ctx.input_dtype = x.dtype
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        refuse_double_backward()
        output, normalised, inverse_rms, gain = ctx.saved_tensors
        # With y = gain * x / r, r = rms: dx = (grad * gain - (x / r) * sum(grad * y) / norm_dim) / r.
        grad, output = (x.to(inverse_rms.dtype) for x in (grad, output))
        product = grad * output
        projection = product.sum(dim=-1, keepdim=True).mul_(inverse_rms).div_(ctx.norm_dim)
        if normalised is None:
            grad_gain = product.reshape(-1, *gain.shape).sum(dim=0).div_(gain)
            normalised = output / gain
        else:
            grad_gain = (grad * normalised).reshape(-1, *gain.shape).sum(dim=0)
        # `out=product` reuses its memory.
        grad_x = torch.mul(grad, gain, out=product).mul_(inverse_rms).addcmul_(normalised, projection, value=-1)
        return grad_x.to(ctx.input_dtype), grad_gain.to(gain.dtype), None, None, None


def rms_norm(x: Tensor, gain: Tensor, eps: float, norm_dim: int) -> Tensor:
    """Compute `reference_rms_norm` over all coordinates."""
    if not use_fused(x):
        return reference_rms_norm(x, gain, eps, norm_dim)
    if not torch.is_grad_enabled():
        return _normalise(x, eps, norm_dim)[0].mul_(gain).to(compute_dtype(x))
    return _RMSNorm.apply(x, gain, eps, norm_dim, compute_dtype(x))
