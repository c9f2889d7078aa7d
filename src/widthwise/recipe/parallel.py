"""Ways to divide a model among processes that there are elsewhere and not here, refused with the reason."""

from collections.abc import Callable, Mapping
from typing import Any

from widthwise.model.config import ModelConfig

ELSEWHERE = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel")
"""Keys of a train section that other programs have."""


def refusal(asked: Mapping[str, Any], model: Callable[[], ModelConfig]) -> str | None:
    """Why a recipe cannot have what it asks for under keys of ELSEWHERE, if it asks for any; 1 asks for nothing."""
    for key, n in asked.items():
        if n not in (None, 1):
            return f"train.{key}: got {n}; is not available: {_REASONS[key](n, model)}; use train.shards"
    return None


def _tensor(n: Any, model: Callable[[], ModelConfig]) -> str:
    if not isinstance(n, int) or n < 1:
        return "it divides every matrix of a layer"
    for number, layer in enumerate(model().layers, start=1):
        if layer.attention.n_kv_heads % n:
            return f"layer {number} has {layer.attention.n_kv_heads} key-value heads, which {n} does not divide"
        for axis in layer.ffn.hidden_axes:
            if getattr(layer.ffn, axis) % n:
                return f"layer {number} has ffn.{axis} = {getattr(layer.ffn, axis)}, which {n} does not divide"
    return "it sends the stream twice a layer, however narrow the layer is"


_REASONS: dict[str, Callable[[Any, Callable[[], ModelConfig]], str]] = {
    "tensor_parallel": _tensor,
    "pipeline_parallel": lambda n, model: "it would send the widest stream and lose the auxiliary losses",
    "context_parallel": lambda n, model: (
        "attention is computed over whole sequences; a smaller micro_batch_size saves activations"
    ),
    "expert_parallel": lambda n, model: "the experts of a layer are one tensor",
}
