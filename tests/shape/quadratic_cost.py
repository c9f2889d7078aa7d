"""The paper's own cost formulas, and reference numbers, for the tests of shapes."""

import json
from dataclasses import dataclass
from pathlib import Path

from widthwise.shape.schedule import WidthCost

ORACLE = json.loads((Path(__file__).parents[1] / "data_files" / "variable_width_oracle.json").read_text())
RHO = 512 / 1600  # expert width over layer width in the paper's mixture


@dataclass(frozen=True)
class QuadraticCost(WidthCost):
    """square * w^2 + linear * w; the first and last layer save saving * w * (w - d_model) where w > d_model."""

    d_model: int
    square: float
    linear: float = 0.0
    first_saving: float = 0.0
    last_saving: float = 0.0

    def per_layer(self, widths):
        costs = self.square * widths**2.0 + self.linear * widths
        costs[0] -= self.first_saving * widths[0] * max(widths[0] - self.d_model, 0)
        costs[-1] -= self.last_saving * widths[-1] * max(widths[-1] - self.d_model, 0)
        return costs


def params_cost(d_model, ffn_ratio=4.0, n_experts=0, kv_share=1.0):
    """Parameters of SwiGLU layers: q and o w^2 each, k and v kv_share * w^2 each, three matrices of ffn_ratio * w^2."""
    square = 2 + 2 * kv_share + 3 * ffn_ratio
    return QuadraticCost(d_model, square, n_experts, first_saving=1 + 2 * kv_share, last_saving=ffn_ratio)
