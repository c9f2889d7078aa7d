"""A plain residual of which every layer learns how much it uses: the width of its prefix of the stream.

The layer reads the stream times a mask and writes its updates times the same mask, which is 1 for the coordinates
within the learned width and 0 behind it, so that it computes what a layer of that width would. The width is one number
for all tokens, and a width budget gives it a price (`recipe.width_budget`).

Norms keep the divisor of the full width d, so that their output is larger by sqrt(d / width) than in a layer of that
width. Matrices that read it start smaller by the same factor, because initial weights go with 1 / sqrt(d); what they
make of the prefix starts as large as it would there.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import pydantic
from pydantic import Field

from widthwise.model.cost import Cost, vector
from widthwise.model.residual.interface import register_residual
from widthwise.model.residual.plain import PlainResidualConfig, PrefixResidual

if TYPE_CHECKING:
    from widthwise.model.layer import LayerConfig
    from widthwise.model.residual.learned_prefix_module import LearnedPrefix


class LearnedPrefixConfig(PrefixResidual):
    """width = (min_fraction + (1 - min_fraction) * sigmoid(bias)) * d, with a learned bias for each layer of width d.

    It has no sizes, so one class is both template and resolved config. Growth does not know it: what was learned is the
    width of a layer of another model.
    """

    kind: Literal["learned_prefix"] = "learned_prefix"
    min_fraction: float = Field(default=0.1, gt=0, lt=1)
    """The smallest width of a layer, over its d_model."""
    start: float = Field(default=0.9, gt=0, lt=1)
    """sigmoid(bias) at the start of training. High, because coordinates that a layer does not use do not learn."""
    multiplier: pydantic.PositiveFloat = 1.0
    """Factor of every update."""

    def matched_cost(self, d_model: int, d_read: Any, d_write: Any) -> Cost:
        """What is read and what is written are kept for the gradient of the mask."""
        return vector(1) + Cost(activation_elements=d_write, activation_fp32_elements=d_read)

    @property
    def layer_params(self) -> int:
        return 1

    def at_widths(self, d_model: int, widths: Sequence[int]) -> "LearnedPrefixConfig":
        return self

    def check_widths(self, d_model: int, widths: Sequence[int]) -> None:
        if len(set(widths)) > 1:
            raise ValueError(
                f"kind: got {self.kind}; layers that learn their widths must all begin with one (shape.kind uniform), "
                f"and these are {min(widths)} to {max(widths)} wide"
            )

    def check_layer(self, layer: "LayerConfig") -> None:
        """What is masked must stay 0 until a matrix reads it."""
        if layer.norm_placement != "pre" or layer.attention_norm.kind != "rms" or layer.ffn_norm.kind != "rms":
            norms = f"{layer.attention_norm.kind}, {layer.ffn_norm.kind}, {layer.norm_placement}"
            raise ValueError(f"norm: got {norms}; {self.kind} needs rms norms before the sublayers, pre")
        if layer.ffn.n_residual_additions > 1:
            raise ValueError(
                f"ffn.kind: got {layer.ffn.kind}, of several blocks; {self.kind} needs one that writes once"
            )

    def cost(self, d_before: int, d_read: int, d_write: int) -> Cost:
        return self.matched_cost(d_before, d_read, d_write)

    def build(self, d_before: int, d_read: int, d_write: int) -> "LearnedPrefix":
        from widthwise.model.residual.learned_prefix_module import LearnedPrefix

        plain = PlainResidualConfig(multiplier=self.multiplier).build(d_before, d_read, d_write)
        return LearnedPrefix(self, plain, max(d_read, d_write))


register_residual(LearnedPrefixConfig, LearnedPrefixConfig)
