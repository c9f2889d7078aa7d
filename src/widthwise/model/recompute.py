"""Activation checkpointing: layers that the backward pass runs again, because what they computed was not kept.

Losses and gradients stay the same. The code calls it recomputation, because a checkpoint is what a run saves.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.checkpoint import checkpoint

from widthwise.model.config import ModelConfig
from widthwise.model.cost import Cost
from widthwise.model.kv_cache import LayerCache

ActivationCheckpointing = Literal["none", "layer", "selective"]


@dataclass(frozen=True)
class Recompute:
    """Which layers run again in the backward pass."""

    every: int | None
    """Layers 0, every, 2 every, ... run again, and of the further heads likewise; None: no layer."""

    def is_recomputed(self, index: int) -> bool:
        """Whether the layer of that index, or the further head of that index among its like, runs again."""
        return self.every is not None and index % self.every == 0

    def run(self, index: int, layer: Callable[..., Any], *inputs: Any, cache: LayerCache | None = None) -> Any:
        """layer(*inputs, cache), of which only the inputs are kept for the backward pass if the layer runs again there.

        Random draws are the same again. Without gradients, or with a cache, this is a plain call.
        """
        if self.every is None or cache is not None or not torch.is_grad_enabled():
            return layer(*inputs, cache)
        # Tensors are passed one by one, so that hooks on saved tensors see what is kept; and as views, so that no layer
        # finds the write that made its state, in a layer before that would have to run again for it.
        leaves, structure = tree_flatten(inputs)
        leaves = [leaf.view_as(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]

        def run_layer(*leaves: Any) -> Any:
            return layer(*tree_unflatten(leaves, structure))

        if self.is_recomputed(index):
            return checkpoint(run_layer, *leaves, use_reentrant=False)
        return run_layer(*leaves)

    def kept(self, model: ModelConfig) -> Cost:
        """The activations, and nothing else of a cost, that are kept from the forward to the backward pass.

        Exact without further heads, as `ModelConfig.cost` is. With them the last stream may be counted twice.
        """
        outside = list(model.end_costs().values())
        if model.mtp is not None:
            head = Cost()  # whose product keeps nothing
            outside += [model.mtp.exit_cost(model.residual, model.d_model, head)] * model.mtp.n_depths
        layers = [cost for i, cost in self._indexed_costs(model) if not self.is_recomputed(i)]
        with torch.device("meta"):
            streams = [stream for i, stream in _inputs(model) if self.is_recomputed(i)]
        return _activations([*outside, *layers, Cost(activation_fp32_elements=_n_elements(streams))])

    def activations(self, model: ModelConfig) -> Cost:
        """At most what is kept at any moment: `kept`, and the largest layer that runs again."""
        again = [_activations([cost]) for i, cost in self._indexed_costs(model) if self.is_recomputed(i)]
        return self.kept(model) + max(again, key=Cost.activation_bytes, default=Cost())

    def repeated_flops(self, model: ModelConfig, seq_len: int) -> float:
        """FLOPs per token of the layers that run again, without their backward passes."""
        return sum(cost.forward_flops(seq_len) for i, cost in self._indexed_costs(model) if self.is_recomputed(i))

    def _indexed_costs(self, model: ModelConfig) -> Iterator[tuple[int, Cost]]:
        """Of each layer and further head: its index, as `run` is told it, and its cost."""
        residual = model.residual if self.every is None else model.residual.within_layers()
        for i, (layer, d_before) in enumerate(zip(model.layers, model.widths_before, strict=True)):
            yield i, sum(layer.costs(residual, d_before).values(), Cost())
        if model.mtp is not None:
            yield from ((k, model.mtp.slots_cost(residual, model.d_model)) for k in range(model.mtp.n_depths))


def _activations(costs: list[Cost]) -> Cost:
    total = sum(costs, Cost())
    return Cost(activation_elements=total.activation_elements, activation_fp32_elements=total.activation_fp32_elements)


def _inputs(model: ModelConfig) -> list[tuple[int, Any]]:
    """Of each layer and further head: its index, as `run` is told it, and the streams that enter it, of one token.

    Found by passing a stream through the residual alone, since only that knows what a stream consists of.
    """
    residual, d_model, found = model.residual, model.d_model, []
    entered = stream = residual.build_entry(d_model)(torch.empty(1, 1, residual.embedding_width(d_model)))
    for i, (layer, d_before) in enumerate(zip(model.layers, model.widths_before, strict=True)):
        found.append((i, stream))
        for widths in ((d_before, layer.d_in, layer.d_model), (layer.d_model, layer.d_model, layer.d_out)):
            site = residual.build(*widths)
            stream = site.write(site.read(stream)[1], torch.empty(1, 1, widths[-1]))
    if model.mtp is not None:
        slots, later = (residual.to_slots(each, d_model) for each in (stream, entered))
        for k in range(model.mtp.n_depths):
            found.append((k, (slots, later)))
            slots = torch.empty_like(slots)
    return found


def _n_elements(streams: list[Any]) -> int:
    """Numbers in the memory that the streams hold, which may be parts of the same."""
    tensors = [leaf for leaf in tree_leaves(streams) if isinstance(leaf, Tensor)]
    sizes = {StorageWeakRef(x.untyped_storage()): x.untyped_storage().nbytes() // x.element_size() for x in tensors}
    return sum(sizes.values())


KEEP_ALL = Recompute(every=None)
RECOMPUTE: dict[ActivationCheckpointing, Recompute] = {
    "none": KEEP_ALL,
    "layer": Recompute(every=1),
    "selective": Recompute(every=2),
}
"""What a recipe calls it -> which layers run again."""
