"""The routed SwiGLU experts of a mixture: for each token the weighted sum over its chosen experts."""

from torch import Tensor

from widthwise.kernels.dispatch import reference_wanted
from widthwise.kernels.grouped_swiglu import fused, reference


def grouped_swiglu(x: Tensor, chosen: Tensor, weights: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor) -> Tensor:
    """See `reference.grouped_swiglu`."""
    form = reference if reference_wanted() else fused
    return form.grouped_swiglu(x, chosen, weights, w_gate, w_up, w_down)
