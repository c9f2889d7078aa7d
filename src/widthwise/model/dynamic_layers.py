"""The dynamic-width layers of a model, and the cost of width in them."""

from collections.abc import Sequence
from dataclasses import dataclass

from widthwise.model.config import ModelConfig
from widthwise.model.ffn.dynamic import DynamicConfig
from widthwise.model.ffn.swiglu import swiglu_cost


@dataclass(frozen=True)
class DynamicLayer:
    """A dynamic-width layer and the cost of its width."""

    index: int
    """Position among all layers, from 0."""
    config: DynamicConfig
    flops_per_unit: float
    """Forward FLOPs per token of one hidden unit."""

    @property
    def narrowest(self) -> float:
        """Smallest width that a token can choose, as a fraction of the full width."""
        return self.config.min_fraction if self.config.mask.has_width else 1.0

    @property
    def full_flops(self) -> float:
        """Forward FLOPs per token at full width, without the score."""
        return self.flops_per_unit * self.config.d_ff


def dynamic_layers(model: ModelConfig) -> tuple[DynamicLayer, ...]:
    """Return the dynamic-width layers of a model, first to last."""
    return tuple(
        DynamicLayer(index, layer.ffn, swiglu_cost(layer.d_model, 1, layer.d_out).flops)
        for index, layer in enumerate(model.layers)
        if isinstance(layer.ffn, DynamicConfig)
    )


def chooses_width(model: ModelConfig) -> bool:
    """Return whether tokens choose their width in any layer of a model."""
    return any(layer.narrowest < 1 for layer in dynamic_layers(model))


def flops_shares(layers: Sequence[DynamicLayer]) -> list[float]:
    """Return the share of each layer in the FLOPs of these layers at full width. The shares sum to 1."""
    total = sum(layer.full_flops for layer in layers)
    return [layer.full_flops / total for layer in layers]


def forced_fractions(layers: Sequence[DynamicLayer], n_widths: int) -> list[float]:
    """Return n_widths width fractions to force on all layers, in equal steps from the smallest minimum to 1."""
    narrowest = min(layer.config.min_fraction for layer in layers)
    return [narrowest + (1 - narrowest) * step / (n_widths - 1) for step in range(n_widths)]
