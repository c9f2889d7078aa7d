"""The cost of a model that was never built."""

from typing import Any

from widthwise.records.cost import CostSummary, FlopsPerToken


def small_cost(**changes: Any) -> CostSummary:
    """One layer of width 8, with numbers that are easy to tell apart. changes: of its fields."""
    fields = {
        "d_model": 8,
        "widths": [8],
        "average_width": 8,
        "params": {"total": 5, "active": 5, "attention": 1, "ffn": 2, "residual": 0},
        "flops_per_token": FlopsPerToken(forward=10, forward_causal=9, training=30),
        "kv_bytes_per_token": 4,
        "activation_bytes_per_token": 7,
    }
    return CostSummary(**(fields | changes))
