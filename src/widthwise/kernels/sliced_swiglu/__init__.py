"""A gated feed-forward of which every token uses the first few units; what no token uses is not computed."""

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
    """Whether stripes of sorted tokens beat one product for all of them.

    Measured on one CPU thread at d_model 768 and d_ff 2048, with widths spread evenly from 0 to d_ff. Stripes took, of
    the masked form's time: in fp32 1.0 (forward pass alone) and 1.1 (with the backward pass) for 16 tokens, 0.9 for 32,
    0.8 for 64; in bf16 1.2 for 64, 0.9 and 1.0 for 128, 0.9 for 256. For thousands of tokens they were no slower than
    the masked form even where all tokens use all units.
    """
    return n_tokens >= (128 if dtype == torch.bfloat16 else 32)


def sliced_swiglu(
    x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, width: Tensor, mask: Mask, margin: float
) -> Tensor:
    """See `reference.sliced_swiglu`. Few tokens share the units that the widest of them needs, as in decoding.

    Under torch.compile all units are computed, since the number of tokens of a width is known only when they are there;
    on a GPU too, where reading that number stalls the queue and no measurement says yet when this pays.
    """
    if use_fused(x):
        if sliced_is_faster(len(x), compute_dtype(x)):
            everything = bool((whole_units(width, margin, len(w_gate)) == len(w_gate)).all())
            if everything and not width.requires_grad:  # which would get a gradient of 0 from stripes, and none here
                return linear(swiglu(linear(x, w_gate), linear(x, w_up)), w_down)
            return fused.sliced_swiglu(x, w_gate, w_up, w_down, width, mask, margin)
        n_units = units_for_all(width, margin, len(w_gate))
        w_gate, w_up, w_down = w_gate[:n_units], w_up[:n_units], w_down[:, :n_units]
    return reference.sliced_swiglu(x, w_gate, w_up, w_down, width, mask, margin)
