"""The layers of a model whose width has a price: which of their widths can be chosen or learned, and what width costs.

What a layer costs are the forward FLOPs of its matrices, without the scores of attention, which no width changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from widthwise.model.config import ModelConfig
from widthwise.model.dynamic_layers import DynamicLayer, dynamic_layers
from widthwise.model.layer import LayerConfig
from widthwise.model.residual.learned_prefix import LearnedPrefixConfig

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PrefixLayer:
    """A layer that learns its width in the stream, whose tokens may choose their hidden width besides.

    All matrices have the stream on one side, so that FLOPs are proportional to the width of the prefix, and those of
    hidden units that can be chosen to the product of the two widths.
    """

    index: int
    """Position among all layers, from 0."""
    fixed_flops: float
    """Forward FLOPs per token at full width of what has no hidden width to choose."""
    hidden_flops: float
    """Those of hidden units of which tokens choose how many they use."""
    narrowest_prefix: float
    """The least fraction of the stream that the layer can come to use."""
    narrowest_hidden: float
    """The least fraction of those hidden units that a token can choose."""

    @property
    def full_flops(self) -> float:
        """Forward FLOPs per token at full width."""
        return self.fixed_flops + self.hidden_flops

    @property
    def narrowest(self) -> float:
        """The least share of these FLOPs that can come to be used."""
        return self.share(self.narrowest_prefix, self.narrowest_hidden)

    def share(self, prefix: Any, hidden: Any) -> Any:
        """The share of these FLOPs that two widths take, each a fraction of the full one: numbers or tensors."""
        return prefix * (self.fixed_flops + self.hidden_flops * hidden) / self.full_flops

    def used(self, choices: "Mapping[str, Tensor]") -> "Tensor":
        """The share of these FLOPs that is used, by each token if tokens choose, from the layer's choices or their
        means."""
        return self.share(choices["prefix_fraction"], choices["width_fraction"] if self.hidden_flops else 1.0)


PricedLayer = DynamicLayer | PrefixLayer


def priced_layers(model: ModelConfig) -> tuple[PricedLayer, ...]:
    """All layers where the residual learns widths, else those with dynamic width; first to last."""
    dynamic, residual = dynamic_layers(model), model.residual
    if not isinstance(residual, LearnedPrefixConfig):
        return dynamic
    of_index = {layer.index: layer for layer in dynamic}
    return tuple(
        _prefix_layer(index, layer, residual.min_fraction, of_index.get(index))
        for index, layer in enumerate(model.layers)
    )


def _prefix_layer(index: int, layer: LayerConfig, narrowest: float, dynamic: DynamicLayer | None) -> PrefixLayer:
    cost = layer.attention.cost(layer.d_model, layer.d_in) + layer.ffn.cost(layer.d_model, layer.d_out)
    hidden, least = (0.0, 1.0) if dynamic is None else (dynamic.full_flops, dynamic.narrowest)
    return PrefixLayer(index, cost.flops - hidden, hidden, narrowest, least)


def has_price(model: ModelConfig) -> bool:
    """Whether a model has a width on which a price could work."""
    return any(layer.narrowest < 1 for layer in priced_layers(model))
