"""The gate of a SwiGLU in plain torch."""

from torch import Tensor
from torch.nn.functional import silu


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up, elementwise. gate, up: (..., d_ff) -> (..., d_ff)."""
    return silu(gate) * up
