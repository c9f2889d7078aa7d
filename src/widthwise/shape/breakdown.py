"""The cost table: what each layer costs, and a model beside its baseline."""

from dataclasses import dataclass
from typing import Any

from widthwise.model.config import ModelConfig, cost_summary
from widthwise.model.cost import Cost
from widthwise.records.cost import CostSummary
from widthwise.records.quantities import OF_MODELS


@dataclass(frozen=True)
class LayerRow:
    """Sizes and cost of one layer; FLOPs and bytes per token."""

    layer: int
    """The layer's number, from 1."""
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    hidden_widths: tuple[int, ...]
    """Hidden channels of every map of the feed-forward, in order."""
    params: float
    forward_flops: float
    kv_bytes: float
    activation_bytes: float


def layer_rows(config: ModelConfig, seq_len: int) -> list[LayerRow]:
    """One row a layer, first to last."""
    costs = [sum(parts.values(), Cost()) for parts in config.layer_costs()]
    return [
        LayerRow(
            layer=number,
            d_model=layer.d_model,
            n_heads=layer.attention.n_heads,
            n_kv_heads=layer.attention.n_kv_heads,
            head_dim=layer.attention.head_dim,
            hidden_widths=layer.ffn.hidden_widths,
            params=cost.params,
            forward_flops=cost.forward_flops(seq_len),
            kv_bytes=cost.kv_bytes(),
            activation_bytes=cost.activation_bytes(),
        )
        for number, (layer, cost) in enumerate(zip(config.layers, costs), start=1)
    ]


def ratios(cost: CostSummary, baseline: CostSummary) -> dict[str, float]:
    """The costs by which models are compared, over the baseline's."""
    return {name: each.of_cost(cost) / each.of_cost(baseline) for name, each in OF_MODELS.items() if each.has_ratio}


def inspection(config: ModelConfig, baseline: ModelConfig | None, seq_len: int) -> dict[str, Any]:
    """What `inspect --json` prints: the cost summary, a row per layer, the baseline's summary and the ratios to it."""
    own = cost_summary(config, seq_len)
    found = {**own.to_data(), "layers": [vars(row) for row in layer_rows(config, seq_len)]}
    if baseline is not None:
        other = cost_summary(baseline, seq_len)
        found |= {"baseline": other.to_data(), "ratio": ratios(own, other)}
    return found
