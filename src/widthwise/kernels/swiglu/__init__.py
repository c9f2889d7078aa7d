"""silu(gate) * up, with only gate and up kept for the backward pass."""

from torch import Tensor

from widthwise.kernels.dispatch import use_fused
from widthwise.kernels.swiglu import fused, reference


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """See `reference.swiglu`."""
    return (fused if use_fused(gate) else reference).swiglu(gate, up)
