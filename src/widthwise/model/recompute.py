"""Activation checkpointing: the backward pass recomputes layers whose activations were not kept.

Losses and gradients stay the same. The code calls it recomputation, because a checkpoint is a saved state of a run.
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
    """The layers that the backward pass recomputes."""

    every: int | None
    """Recompute layers 0, every, 2 every, ..., and MTP heads likewise; None: no layer."""

    def is_recomputed(self, index: int) -> bool:
        """Return whether the layer or MTP head with this index is recomputed."""
        return self.every is not None and index % self.every == 0

    def run(self, index: int, layer: Callable[..., Any], *inputs: Any, cache: LayerCache | None = None) -> Any:
        """Return layer(*inputs, cache). For a layer that the backward pass recomputes, keep only the inputs.

        A recomputed layer repeats its random draws. Without gradients, or with a cache, this is a plain call.
        """
        if self.every is None or cache is not None or not torch.is_grad_enabled():
            return layer(*inputs, cache)
        # Tensors are passed one by one, so that hooks on saved tensors see them. They are views, because the backward
        # pass of slots would otherwise follow them to the layer that wrote them and recompute that layer as well.
        leaves, structure = tree_flatten(inputs)
        leaves = [leaf.view_as(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]

        def run_layer(*leaves: Any) -> Any:
            return layer(*tree_unflatten(leaves, structure))

        if self.is_recomputed(index):
            return checkpoint(run_layer, *leaves, use_reentrant=False)
        return run_layer(*leaves)

    def kept_activations(self, model: ModelConfig) -> Cost:
        """Return the activations that are kept from the forward to the backward pass, as a cost without other fields.

        Exact without MTP heads, as `ModelConfig.cost`. With them the last stream may be counted twice.
        """
        exits = []
        if model.mtp is not None:
            head = Cost()  # its product keeps nothing
            exits = [model.mtp.exit_cost(model.residual, model.d_model, head=head)] * model.mtp.n_depths
        return activations_of(*model.end_costs().values(), *self.kept_by_layer(model), *exits)

    def kept_by_layer(self, model: ModelConfig) -> list[Cost]:
        """Return the kept activations of each layer and MTP head, in the order of the forward pass.

        A recomputed layer keeps its input, except tensors that an earlier layer keeps.
        """
        with torch.device("meta"):
            inputs = _inputs(model)
        costs: list[Cost] = []
        n_elements: dict[StorageWeakRef, int] = {}  # by storage, because tensors may share one
        for (i, cost), stream in zip(self._indexed_costs(model), inputs, strict=True):
            if not self.is_recomputed(i):
                costs.append(activations_of(cost))
                continue
            n_before = sum(n_elements.values())
            for tensor in tree_leaves(stream):
                if isinstance(tensor, Tensor):
                    storage = tensor.untyped_storage()
                    n_elements[StorageWeakRef(storage)] = storage.nbytes() // tensor.element_size()
            costs.append(Cost(activation_fp32_elements=sum(n_elements.values()) - n_before))
        return costs

    def recomputed(self, model: ModelConfig) -> list[Cost]:
        """Return the recomputed activations of each layer and MTP head, in the order of the forward pass."""
        return [activations_of(cost) if self.is_recomputed(i) else Cost() for i, cost in self._indexed_costs(model)]

    def repeated_flops(self, model: ModelConfig, seq_len: int) -> float:
        """Return the FLOPs per token that the backward pass spends on recomputing layers."""
        return sum(cost.forward_flops(seq_len) for i, cost in self._indexed_costs(model) if self.is_recomputed(i))

    def _indexed_costs(self, model: ModelConfig) -> Iterator[tuple[int, Cost]]:
        """Yield the index and the cost of each layer, then of each MTP head. Both are counted from 0, as in `run`."""
        if self.every is not None:  # recomputed layers keep no states of other layers
            model = model.model_copy(update={"residual": model.residual.within_layers()})
        for i, costs in enumerate(model.layer_costs()):
            yield i, sum(costs.values(), Cost())
        if model.mtp is not None:
            for k in range(model.mtp.n_depths):
                yield k, model.mtp.slots_cost(model.residual, model.d_model)


def activations_of(*costs: Cost) -> Cost:
    """Return the activations of some parts, as a cost without other fields."""
    total = sum(costs, Cost())
    return Cost(activation_elements=total.activation_elements, activation_fp32_elements=total.activation_fp32_elements)


def _inputs(model: ModelConfig) -> list[Any]:
    """Return the inputs of each layer and MTP head for one token, without values if the default device is meta.

    They are computed by the modules of the residual, because the type of a stream depends on the residual.
    """
    residual = model.residual
    d_model = model.d_model
    inputs = []
    embedded = residual.build_entry(d_model)(torch.empty(1, 1, residual.embedding_width(d_model)))
    stream = embedded
    for layer, d_before in zip(model.layers, model.widths_before, strict=True):
        inputs.append(stream)
        for d_stream, d_read, d_write in layer.sites(d_before):
            site = residual.build(d_stream, d_read, d_write)
            _, skip = site.read(stream)
            stream = site.write(skip, torch.empty(1, 1, d_write))
    if model.mtp is not None:
        slots = residual.to_slots(stream, d_model)
        embedded_slots = residual.to_slots(embedded, d_model)
        for _ in range(model.mtp.n_depths):
            inputs.append((slots, embedded_slots))
            slots = torch.empty_like(slots)
    return inputs


KEEP_ALL = Recompute(every=None)
RECOMPUTE: dict[ActivationCheckpointing, Recompute] = {
    "none": KEEP_ALL,
    "layer": Recompute(every=1),
    "selective": Recompute(every=2),
}
"""Name in a recipe -> the recomputed layers."""
