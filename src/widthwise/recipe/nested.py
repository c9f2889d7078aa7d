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


class DistillConfig(Config):
    """Narrow passes learn the predictions of the full width, which they do not move.

    Their objective is (1 - weight) * loss + weight * temperature^2 * KL(full || narrow), where both predictions are
    softmax(logits / temperature). Sources: Hinton et al. 2015, arXiv:1503.02531; in-place distillation of universally
    slimmable networks, which is weight 1, arXiv:1903.05134.
    """

    weight: float = Field(default=0.5, ge=0, le=1)
    """Share of a narrow pass's objective; 0 changes nothing."""
    temperature: pydantic.PositiveFloat = 1.0
    """Above 1, unlikely tokens count for more."""


class NestedConfig(Config):
    """Every step also minimises the loss at full width, and at a narrower width drawn for the step; weights are 1.

    A width is forced on all tokens and all dynamic layers.
    """

    n_widths: Count = Field(default=4, ge=2)
    """Widths, in equal steps from the narrowest a token can have to the full one."""
    sandwich: bool = False
    """Whether every step also sees the narrowest width; the drawn one then lies between it and the full one."""
    chosen: bool = True
    """Whether a step still has its pass at the widths that tokens choose. Without it nothing trains the choice, and
    the reported training loss is the one at full width."""
    distill: DistillConfig | None = None
    """What passes at narrower widths learn from the pass at full width, the one at chosen widths included."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "NestedConfig":
        if self.sandwich and self.n_widths < 3:
            raise ValueError(f"n_widths: got {self.n_widths}; sandwich needs one between the narrowest and the full")
        return self

    @property
    def n_passes(self) -> int:
        """Forward and backward passes over the batch in a step."""
        return 2 + self.chosen + self.sandwich

    @property
    def pull(self) -> DistillConfig | None:
        """The distillation, where it has a weight."""
        return self.distill if self.distill is not None and self.distill.weight else None

    def flops_per_token(self, model: ModelConfig, seq_len: int) -> float:
        """Training FLOPs of a step for each of its tokens. A pass that is distilled has the head's product once more,
        for the predictions of the full width, of which nothing else is computed again."""
        n_pulled = 0 if self.pull is None else self.n_passes - 1
        return self.n_passes * model.cost().training_flops(seq_len) + n_pulled * model.head_flops

    def check(self, model: ModelConfig) -> None:
        """Raises UserError where no layer of the model has narrower widths."""
        layers = dynamic_layers(model)
        if not layers or forced_fractions(layers, self.n_widths)[0] == 1:
            raise UserError(
                "train.nested: no layer of the model has more than one width; only ffn.kind 'dynamic' and "
                "'dynamic_hourglass' with min_fraction below 1 do"
            )
