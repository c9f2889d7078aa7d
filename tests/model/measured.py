"""Sizes, FLOPs and bytes kept for the backward pass of a model, as torch counts them."""

from collections.abc import Callable, Iterable

import torch
from model_cases import random_tokens
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder
from widthwise.model.ffn.moe_module import MoE


def on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return make()


def part_of(name: str) -> str:
    """Return the part of the decoder, one of `records.cost.PARTS`, that contains a parameter."""
    first, *inside = name.split(".")
    if first in ("head", "mtp"):
        return first
    if first in ("embedding", "positions", "entry"):
        return "embedding"
    if first == "exit":
        return "norm" if inside[0] == "norm" else "residual"
    if inside[1].endswith("residual"):
        return "residual"
    return "norm" if name.replace(".post.", ".").endswith(("norm.weight", "norm.bias.weight")) else inside[1]


def parameters_by_part(model: Decoder) -> dict[str, int]:
    parts = dict.fromkeys(("embedding", "attention", "ffn", "norm", "residual", "head", "mtp"), 0)
    for name, parameter in model.named_parameters():
        parts[part_of(name)] += parameter.numel()
    return parts


def counted_flops(function: Callable[[], object]) -> int:
    """Return the FLOPs of a forward pass by torch's counter, with attention as two full matrix products."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        function()
    return counter.get_total_flops()


def kept_bytes(function: Callable[[], object], without: Iterable[Tensor] = ()) -> int:
    """Return the bytes that autograd keeps while `function` runs: distinct storages of real numbers.

    without: tensors that are not counted.
    """
    saved: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = function()  # alive until counted, so that no storage is used twice
    excluded = {tensor.untyped_storage().data_ptr() for tensor in without}
    n_bytes = sum(tensor.untyped_storage().nbytes() for address, tensor in saved.items() if address not in excluded)
    del result
    return n_bytes


def kept_per_token(run: Callable[[int], object], length: int) -> float:
    """Return the bytes that autograd keeps for each further token, measured with three sequences and with one.

    The difference leaves out parameters, their casts and rotary tables. run: function of the number of sequences;
    length: tokens in a sequence.
    """
    return (kept_bytes(lambda: run(3)) - kept_bytes(lambda: run(1))) / (2 * length)


def kept_in_training(model: Decoder, length: int = 9) -> float:
    """Return the bytes that autograd keeps for each token of a training pass."""
    return kept_per_token(lambda batch: model.loss(*(random_tokens(batch, length, seed=i) for i in (0, 1))), length)


def idle_parameters(model: Decoder) -> int:
    """Return the number of parameters of the experts that one token does not use."""
    mixtures = [module for module in model.modules() if isinstance(module, MoE)]
    return sum(
        matrix.weight.numel() // mixture.config.n_experts * (mixture.config.n_experts - mixture.config.top_k)
        for mixture in mixtures
        for matrix in (mixture.w_gate, mixture.w_up, mixture.w_down)
    )


def check_against_torch(resolved: ModelConfig, seq_len: int) -> None:
    """Assert that the parameters by part and the FLOPs of the config are those that torch counts."""
    model = on_meta(lambda: Decoder(resolved))
    costs, total = resolved.costs(), resolved.cost()
    assert {part: cost.params for part, cost in costs.items()} == parameters_by_part(model)
    assert total.params == sum(p.numel() for p in model.parameters()) == total.active_params + idle_parameters(model)
    tokens = torch.zeros(1, seq_len, dtype=torch.long, device="meta")
    assert resolved.inference_cost().forward_flops(seq_len) * seq_len == counted_flops(lambda: model(tokens))
