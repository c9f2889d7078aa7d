"""The cost of a model that was never built, and a variant of a comparison that was never made."""

from typing import Any

from widthwise.records.cost import CostSummary, FlopsPerToken
from widthwise.records.estimate import Estimate
from widthwise.records.outcome import Variant


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


def small_variant(**changes: Any) -> Variant:
    """One with a held-out loss of 2. changes: of its fields."""
    fields = {"name": "x", "state": "finished", "runs": ["x"], "val_loss": Estimate(mean=2), "ratio": {}}
    return Variant(**{"cost": small_cost(), **fields, **changes})
