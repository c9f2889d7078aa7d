"""What torch itself says about a model: sizes, FLOPs, and the bytes kept for the backward pass."""

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
    """The part, one of `records.cost.PARTS`, that contains a decoder's parameter."""
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
    """FLOPs of a forward pass as torch's counter sees them, with attention in its plain form, of two full products."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        function()
    return counter.get_total_flops()


def kept_bytes(function: Callable[[], object], without: Iterable[Tensor] = ()) -> int:
    """Bytes of the distinct storages of real numbers that autograd keeps while `function` runs, besides some known."""
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = function()  # alive until counted, so that no storage is used twice
    known = {tensor.untyped_storage().data_ptr() for tensor in without}
    n_bytes = sum(tensor.untyped_storage().nbytes() for address, tensor in kept.items() if address not in known)
    del result
    return n_bytes


def kept_per_token(run: Callable[[int], object], length: int) -> float:
    """Bytes that autograd keeps for each token that two more sequences add: what does not follow the tokens, as
    parameters, their casts and rotary tables, is there with one already. run: computes so many sequences.
    """
    return (kept_bytes(lambda: run(3)) - kept_bytes(lambda: run(1))) / (2 * length)


def kept_in_training(model: Decoder, length: int = 9) -> float:
    """Bytes that autograd keeps for each token of a training pass."""
    return kept_per_token(lambda batch: model.loss(*(random_tokens(batch, length, seed=i) for i in (0, 1))), length)


def idle_parameters(model: Decoder) -> int:
    """Parameters of the experts that a token is not sent to."""
    mixtures = [module for module in model.modules() if isinstance(module, MoE)]
    return sum(
        matrix.weight.numel() // mixture.config.n_experts * (mixture.config.n_experts - mixture.config.top_k)
        for mixture in mixtures
        for matrix in (mixture.w_gate, mixture.w_up, mixture.w_down)
    )


def check_against_torch(resolved: ModelConfig, seq_len: int) -> None:
    """Sizes by part, and FLOPs."""
    model = on_meta(lambda: Decoder(resolved))
    costs, total = resolved.costs(), resolved.cost()
    assert {part: cost.params for part, cost in costs.items()} == parameters_by_part(model)
    assert total.params == sum(p.numel() for p in model.parameters()) == total.active_params + idle_parameters(model)
    tokens = torch.zeros(1, seq_len, dtype=torch.long, device="meta")
    assert resolved.inference_cost().forward_flops(seq_len) * seq_len == counted_flops(lambda: model(tokens))
