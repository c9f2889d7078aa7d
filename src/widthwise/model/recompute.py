"""Activation checkpointing: layers that the backward pass runs again, because what they computed was not kept.

Losses and gradients stay the same. The code calls it recomputation, because a checkpoint is what a run saves.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.checkpoint import checkpoint

from widthwise.computing import ActivationCheckpointing
from widthwise.model.config import ModelConfig
from widthwise.model.context import LayerCache
from widthwise.model.cost import Cost


@dataclass(frozen=True)
class Recompute:
    """Which layers run again in the backward pass."""

    every: int | None
    """Layers 0, every, 2 every, ... run again, and of the further heads likewise; None: no layer."""

    def is_recomputed(self, index: int) -> bool:
        """Return whether the layer, or the further head, with that index runs again."""
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
        exits = []
        if model.mtp is not None:
            head = Cost()  # its product keeps nothing
            exits = [model.mtp.exit_cost(model.residual, model.d_model, head=head)] * model.mtp.n_depths
        return activations_of(*model.end_costs().values(), *self.kept_by_layer(model), *exits)

    def kept_by_layer(self, model: ModelConfig) -> list[Cost]:
        """Return what is kept of each layer and further head, in the order of the forward pass.

        A layer that runs again keeps its input, as far as no layer before it keeps the same.
        """
        with torch.device("meta"):
            inputs = _inputs(model)
        costs, streams, n_elements = list[Cost](), list[Any](), 0
        for (i, cost), (_, stream) in zip(self._indexed_costs(model), inputs, strict=True):
            if self.is_recomputed(i):
                streams.append(stream)
                tensors = [leaf for leaf in tree_leaves(streams) if isinstance(leaf, Tensor)]
                memory = {StorageWeakRef(x.untyped_storage()): x for x in tensors}  # they may be parts of the same
                n_before = n_elements
                n_elements = sum(x.untyped_storage().nbytes() // x.element_size() for x in memory.values())
                costs.append(Cost(activation_fp32_elements=n_elements - n_before))
            else:
                costs.append(activations_of(cost))
        return costs

    def made_again(self, model: ModelConfig) -> list[Cost]:
        """Return the activations of each layer and further head that the backward pass recomputes, in forward order."""
        return [activations_of(cost) if self.is_recomputed(i) else Cost() for i, cost in self._indexed_costs(model)]

    def repeated_flops(self, model: ModelConfig, seq_len: int) -> float:
        """FLOPs per token of the layers that run again, without their backward passes."""
        return sum(cost.forward_flops(seq_len) for i, cost in self._indexed_costs(model) if self.is_recomputed(i))

    def _indexed_costs(self, model: ModelConfig) -> Iterator[tuple[int, Cost]]:
        """Index, as passed to `run`, and cost of each layer and further head."""
        counted = self._counted(model)
        for i, costs in enumerate(counted.layer_costs()):
            yield i, sum(costs.values(), Cost())
        if model.mtp is not None:
            yield from ((k, model.mtp.slots_cost(counted.residual, model.d_model)) for k in range(model.mtp.n_depths))

    def _counted(self, model: ModelConfig) -> ModelConfig:
        """Return the model with the states that are made again within a layer, where layers run again."""
        if self.every is None:
            return model
        return model.model_copy(update={"residual": model.residual.within_layers()})


def activations_of(*costs: Cost) -> Cost:
    """The activations of some parts, and nothing else of their cost."""
    total = sum(costs, Cost())
    return Cost(activation_elements=total.activation_elements, activation_fp32_elements=total.activation_fp32_elements)


def _inputs(model: ModelConfig) -> list[tuple[int, Any]]:
    """Index, as passed to `run`, of each layer and further head, and the streams of one token that enter it.

    Found by passing a stream through the residual alone, since only that knows what a stream consists of.
    """
    residual, d_model, inputs = model.residual, model.d_model, []
    entered = stream = residual.build_entry(d_model)(torch.empty(1, 1, residual.embedding_width(d_model)))
    for i, (layer, d_before) in enumerate(zip(model.layers, model.widths_before, strict=True)):
        inputs.append((i, stream))
        for widths in layer.sites(d_before):
            site = residual.build(*widths)
            stream = site.write(site.read(stream)[1], torch.empty(1, 1, widths[-1]))
    if model.mtp is not None:
        slots, later = (residual.to_slots(each, d_model) for each in (stream, entered))
        for k in range(model.mtp.n_depths):
            inputs.append((k, (slots, later)))
            slots = torch.empty_like(slots)
    return inputs


KEEP_ALL = Recompute(every=None)
RECOMPUTE: dict[ActivationCheckpointing, Recompute] = {
    "none": KEEP_ALL,
    "layer": Recompute(every=1),
    "selective": Recompute(every=2),
}
"""Name in a recipe -> the layers that run again."""
