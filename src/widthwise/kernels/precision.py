"""The dtype of the matrix products in a forward pass."""

import torch

from widthwise.computing import Precision


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """The context of a forward pass: matrix products in bf16 and everything else in fp32, or all in fp32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")
