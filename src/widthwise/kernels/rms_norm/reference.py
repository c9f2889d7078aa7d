"""RMSNorm in plain torch. Source: Zhang and Sennrich 2019, arXiv:1910.07467."""

import torch
from torch import Tensor

from widthwise.kernels.dispatch import compute_dtype


def rms_norm(x: Tensor, gain: Tensor, eps: float, norm_dim: int, stat_width: int | None = None) -> Tensor:
    """gain * x / sqrt(sum(x^2) / norm_dim + eps) over the last axis, computed in fp32 or wider.

    stat_width: how many leading coordinates enter the sum of squares; None: all.

    x: (..., n), gain: (n,), or (groups, n) for x (..., groups, n) -> the shape of x, in the autocast dtype if autocast
    is on, else in the dtype of x.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    inverse_rms = torch.rsqrt(wide[..., :stat_width].square().sum(dim=-1, keepdim=True) / norm_dim + eps)
    return (wide * inverse_rms * gain).to(compute_dtype(x))
