"""Activation checkpointing: layers that the backward pass runs again, because what they computed was not kept.

Losses and gradients stay the same. The code calls it recomputation, because a checkpoint is what a run saves.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

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


KEEP_ALL = Recompute(every=None)
RECOMPUTE: dict[ActivationCheckpointing, Recompute] = {
    "none": KEEP_ALL,
    "layer": Recompute(every=1),
    "selective": Recompute(every=2),
}
"""What a recipe calls it -> which layers run again."""
