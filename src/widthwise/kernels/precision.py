"""The dtype of the matrix products in a forward pass."""

import torch

from widthwise.computing import Precision


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """The context of a forward pass: matrix products in bf16 and everything else in fp32, or all in fp32.

    Inside of somebody else's autocast, casts of the weights would be kept beyond an update: they are forgotten here.
    """
    torch.clear_autocast_cache()
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")
