"""The dtype of the matrix products in a forward pass."""

from typing import Literal

import torch

Precision = Literal["fp32", "bf16"]


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """The context of a forward pass: matrix products in bf16 and everything else in fp32, or all in fp32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")
