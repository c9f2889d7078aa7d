"""The models of the hourglass paper, arXiv:2602.06471, and the formulas of its budget, for the tests of the search."""

import math
from dataclasses import dataclass

from widthwise.config_io import parse
from widthwise.shape.template import ModelTemplate

VOCAB = 100352


@dataclass(frozen=True)
class Baseline:
    """A conventional model of Table 3: attention of as many key-value heads, a SwiGLU of 4 d_model."""

    d_model: int
    n_layers: int
    n_heads: int
    seq_len: int

    @property
    def layer_params(self) -> int:
        return 16 * self.n_layers * self.d_model**2

    def template(self, **changes) -> ModelTemplate:
        data = {
            "vocab_size": VOCAB,
            "d_model": self.d_model,
            "n_layers": self.n_layers,
            "attention": {"n_heads": self.n_heads},
        }
        return parse(ModelTemplate, {**data, **changes}, "model")


BASELINES = {
    "113M": Baseline(768, 12, 12, 2048),
    "403M": Baseline(1024, 24, 16, 2048),
    "906M": Baseline(1536, 24, 16, 2048),
    "1074M": Baseline(2048, 16, 16, 4096),
}

SEARCHED = [
    # baseline, n_blocks, n_layers, target ratio, d_model, d_hidden
    ("113M", 4, 12, 0.4, 1032, 418),
    ("113M", 2, 12, 0.45, 1176, 553),
    ("113M", 2, 6, 0.75, 1488, 1122),
    ("113M", 4, 6, 0.5, 1368, 694),
    ("403M", 4, 24, 0.4, 1376, 557),
    ("403M", 4, 24, 0.55, 1248, 704),  # what Table 3 prints the parts of
    ("906M", 4, 24, 0.4, 2080, 819),
    ("1074M", 1, 20, 0.875, 2848, 2486),
    ("113M", 5, 12, 0.8, 768, 614),
    ("113M", 6, 12, 2 / 3, 768, 512),
    ("113M", 8, 12, 0.5, 768, 384),
    ("113M", 10, 12, 0.4, 768, 307),
]
"""Tables 1 to 3."""


def layer_params(n_blocks, n_layers, d_model, d_hidden):
    """Parameters of the layers' matrices."""
    return n_layers * d_model * (4 * d_model + 3 * n_blocks * d_hidden)


def params(n_blocks, n_layers, d_model, d_hidden):
    gains = (n_layers * (1 + n_blocks) + 1) * d_model
    return layer_params(n_blocks, n_layers, d_model, d_hidden) + gains + 2 * VOCAB * d_model


def flops(n_blocks, n_layers, d_model, d_hidden, context):
    """Forward, per token, with so many tokens attended to."""
    scores, head = 4 * n_layers * d_model * context, 2 * VOCAB * d_model
    return 2 * layer_params(n_blocks, n_layers, d_model, d_hidden) + scores + head


def paper_sizes(budget, n_blocks, n_layers, ratio, n_heads):
    """(d_model, d_hidden) by the rule behind the paper's tables, see docs/shape.md; budget: layer_params."""
    quantum = 2 * n_heads
    d_model = quantum * round(math.sqrt(budget / (n_layers * (4 + 3 * n_blocks * ratio))) / quantum)
    return d_model, round((budget - 4 * n_layers * d_model**2) / (3 * n_blocks * n_layers * d_model))
