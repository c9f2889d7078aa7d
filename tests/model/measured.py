"""What torch itself says about a model: sizes, FLOPs, and the bytes kept for the backward pass."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from widthwise.model.config import part_of
from widthwise.model.decoder import Decoder


def on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return make()


def parameters_by_part(model: Decoder) -> dict[str, int]:
    parts = dict.fromkeys(("embedding", "attention", "ffn", "norm", "residual", "head", "mtp"), 0)
    for name, parameter in model.named_parameters():
        parts[part_of(name)] += parameter.numel()
    return parts


def counted_flops(function: Callable[[], object]) -> int:
    """FLOPs of a forward pass as torch's counter sees them, with attention in its plain form, of two full products."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        function()
    return counter.get_total_flops()


def kept_bytes(function: Callable[[], object]) -> int:
    """Bytes of the distinct storages of real numbers that autograd keeps while `function` runs."""
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = function()  # alive until counted, so that no storage is used twice
    n_bytes = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    del result
    return n_bytes
