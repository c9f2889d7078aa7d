"""A SwiGLU in which each token uses only its first few hidden units; unused units are not computed."""

import torch
from torch import Tensor
from torch.nn.functional import linear

from widthwise.kernels.dispatch import compute_dtype, use_fused
from widthwise.kernels.sliced_swiglu import fused, reference
from widthwise.kernels.sliced_swiglu.buckets import bucketed_units, units_for_all, whole_units
from widthwise.kernels.sliced_swiglu.reference import Mask
from widthwise.kernels.swiglu import swiglu

__all__ = ["Mask", "bucketed_units", "sliced_swiglu"]


def sliced_is_faster(n_tokens: int, dtype: torch.dtype) -> bool:
    """Whether stripes of sorted tokens are faster than the masked form, which computes all units.

    Measured on one CPU thread at d_model 768, d_ff 2048 and widths spread evenly from 0 to d_ff, as time over that of
    the masked form (forward / with backward, where they differ): fp32 1.0 / 1.1 for 16 tokens, 0.9 for 32, 0.8 for 64;
    bf16 1.2 for 64 tokens, 0.9 / 1.0 for 128, 0.9 for 256. For thousands of tokens stripes were no slower even if all
    tokens used all units.
    """
    return n_tokens >= (128 if dtype == torch.bfloat16 else 32)


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
    """See `reference.sliced_swiglu`. A few tokens, as in decoding, all compute the units that the widest of them needs.

    All units are computed under torch.compile, because token counts are known only at run time, and on a GPU, where
    reading these counts stalls the queue and nobody has measured yet when it pays.
    """
    if use_fused(x):
        if sliced_is_faster(len(x), compute_dtype(x)):
            everything = bool((whole_units(width, margin, len(w_gate)) == len(w_gate)).all())
            if everything and not width.requires_grad:  # else the width needs the gradient of 0 that stripes give it
                return linear(swiglu(linear(x, w_gate), linear(x, w_up)), w_down)
            return fused.sliced_swiglu(x, w_gate, w_up, w_down, width, mask, margin, overlap)
        n_units = units_for_all(width, margin, len(w_gate))
        w_gate, w_up, w_down = w_gate[:n_units], w_up[:n_units], w_down[:, :n_units]
    return reference.sliced_swiglu(x, w_gate, w_up, w_down, width, mask, margin, overlap)
