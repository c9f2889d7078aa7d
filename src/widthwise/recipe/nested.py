"""Training the narrow feed-forwards inside the wide ones: passes over the same batch at forced widths.

The first units of a layer then make a feed-forward of their own. Sources: universally slimmable networks,
arXiv:1903.05134; MatFormer, arXiv:2310.07707.
"""

import pydantic
from pydantic import Field

from widthwise.config_io import Config, UserError
from widthwise.model.config import ModelConfig
from widthwise.model.dynamic_layers import dynamic_layers, forced_fractions
from widthwise.sizes import Count


class NestedConfig(Config):
    """Every step also minimises the loss at full width, and at a narrower width drawn for the step; weights are 1.

    A width is forced on all tokens and all dynamic layers. Narrow outputs are not distilled from the full one: that
    would take the logits of two passes, and the loss never holds those of one.
    """

    n_widths: Count = Field(default=4, ge=2)
    """Widths, in equal steps from the narrowest a token can have to the full one."""
    sandwich: bool = False
    """Whether every step also sees the narrowest width; the drawn one then lies between it and the full one."""
    chosen: bool = True
    """Whether a step still has its pass at the widths that tokens choose. Without it nothing trains the choice, and
    the reported training loss is the one at full width."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "NestedConfig":
        if self.sandwich and self.n_widths < 3:
            raise ValueError(f"n_widths: got {self.n_widths}; sandwich needs one between the narrowest and the full")
        return self

    @property
    def n_passes(self) -> int:
        """Forward and backward passes over the batch in a step."""
        return 2 + self.chosen + self.sandwich

    def check(self, model: ModelConfig) -> None:
        """Raises UserError where no layer of the model has narrower widths."""
        layers = dynamic_layers(model)
        if not layers or forced_fractions(layers, self.n_widths)[0] == 1:
            raise UserError(
                "train.nested: no layer of the model has more than one width; only ffn.kind 'dynamic' with "
                "min_fraction below 1 does"
            )
