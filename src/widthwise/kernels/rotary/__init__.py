"""Rotary positions: queries or keys turned by the angles of their positions."""

from torch import Tensor

from widthwise.kernels.dispatch import use_fused
from widthwise.kernels.rotary import fused, reference


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """See `reference.rotate`."""
    return (fused if use_fused(x) else reference).rotate(x, cos, sin)
