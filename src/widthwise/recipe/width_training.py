"""Training of layers that choose their width: a price on the units that they use, and passes at forced widths.

The loss alone does not reward a narrow width. The fraction of a layer's width is differentiable even where its mask is
not, so the term of a budget always has a gradient. It joins the objective only, never a reported loss.
"""

from operator import mul
from typing import TYPE_CHECKING, Literal

import pydantic
from pydantic import Field

from widthwise.config_io import Config, UserError
from widthwise.model.config import ModelConfig
from widthwise.model.dynamic_layers import chooses_width, dynamic_layers, flops_shares, forced_fractions
from widthwise.sizes import Count

if TYPE_CHECKING:
    from torch import Tensor


class WidthBudgetConfig(Config):
    """price * (mean - target), where every step moves the price by rate * (mean - target), but not below 0.

    mean: the fraction of the hidden width that tokens use, over the tokens of a forward pass and over the layers,
    weighted by their FLOPs. The price settles where the mean meets the target; it is then what a unit more would be
    worth to the loss. Alone it lags: it still rises while the widths come down, and they overshoot. So in each forward
    pass `damping` * (mean - target) is added to it, again not below 0, which makes the term an augmented Lagrangian
    (Hestenes 1969); with damping 0 the term is linear in the tokens, and micro-batches do not matter.
    """

    kind: Literal["lagrangian"] = "lagrangian"
    target: float = Field(gt=0, le=1)
    """The mean fraction to come down to."""
    rate: pydantic.PositiveFloat = 0.003
    """Nats that the price rises in a step for all the width there is; damping / rate is how many steps it takes."""
    damping: pydantic.NonNegativeFloat = 1.0
    """Nats for all the width there is."""

    def check(self, model: ModelConfig) -> None:
        """Raises UserError where the model has no width to choose, or cannot be as narrow as the target."""
        if not chooses_width(model):
            raise UserError(
                "train.width_budget: no layer of the model chooses its width; those of ffn.kind 'dynamic' and "
                "'dynamic_hourglass' do, with a mask and min_fraction below 1"
            )
        layers = dynamic_layers(model)
        least = sum(map(mul, flops_shares(layers), (layer.narrowest for layer in layers)))
        if self.target <= least:
            raise UserError(
                f"train.width_budget.target: got {self.target}; must be above {least:.4g}, the narrowest that the "
                "model allows (min_fraction of ffn)"
            )

    def term(self, mean: "Tensor", price: "Tensor") -> "Tensor":
        """Return the term of the objective, in nats."""
        return self._moved(price, mean.detach(), self.damping) * (mean - self.target)

    def next_price(self, mean: "Tensor", price: "Tensor") -> "Tensor":
        """Return the price of the next step from the mean of the whole batch. It starts at 0."""
        return self._moved(price, mean, self.rate)

    def _moved(self, price: "Tensor", mean: "Tensor", gain: float) -> "Tensor":
        return (price + gain * (mean - self.target)).clamp(min=0)


class NestedConfig(Config):
    """Every step also minimises the loss at full width, and at a narrower width drawn for the step; weights are 1.

    A width is forced on all tokens and all dynamic layers.
    """

    n_widths: Count = Field(default=4, ge=2)
    """Widths, in equal steps from the narrowest a token can have to the full one."""
    chosen: bool = True
    """A step still has its pass at the widths that tokens choose. Without it nothing trains the choice, and
    the reported training loss is the one at full width."""

    @property
    def n_passes(self) -> int:
        """Forward and backward passes over the batch in a step."""
        return 2 + self.chosen

    def check(self, model: ModelConfig) -> None:
        """Raises UserError where no layer of the model has narrower widths."""
        layers = dynamic_layers(model)
        if not layers or forced_fractions(layers, self.n_widths)[0] == 1:
            raise UserError(
                "train.nested: no layer of the model has more than one width; only ffn.kind 'dynamic' and "
                "'dynamic_hourglass' with min_fraction below 1 do"
            )
