"""Training of layers that choose their width: a price on the units that they use, and passes at forced widths.

The loss alone does not reward a narrow width. The fraction of a layer's width is differentiable even where its mask is
not, so the terms of a budget always have a gradient. They join the objective only, never a reported loss.
"""

from abc import ABC, abstractmethod
from operator import mul
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import pydantic
from pydantic import Field

from widthwise.config_io import Config, UserError
from widthwise.model.config import ModelConfig
from widthwise.model.dynamic_layers import chooses_width, dynamic_layers, flops_shares, forced_fractions
from widthwise.sizes import Count

if TYPE_CHECKING:
    from torch import Tensor


class _Budget(Config, ABC):
    """A function of the mean fraction of a layer's hidden width, averaged over the tokens of a forward pass."""

    has_price: ClassVar[bool] = False
    """True if its price moves, and is worth a record."""
    spread: pydantic.NonNegativeFloat = 0.0
    """Reward of a layer whose tokens differ: so many times the variance of their fractions is subtracted."""

    @property
    def is_layerwise(self) -> bool:
        """Return True if every layer has a separate term and price."""
        return False

    def check(self, model: ModelConfig) -> None:
        """Raises UserError where the model has no width to choose, or none that this could ask for."""
        if not chooses_width(model):
            raise UserError(
                "train.width_budget: no layer of the model chooses its width; those of ffn.kind 'dynamic' and "
                "'dynamic_hourglass' do, with a mask and min_fraction below 1"
            )

    @abstractmethod
    def term(self, mean: "Tensor", price: "Tensor") -> "Tensor":
        """Return the terms of the objective, in nats, elementwise."""

    def next_price(self, mean: "Tensor", price: "Tensor") -> "Tensor":
        """The price of the next step from the mean of the whole batch. It starts at 0."""
        return price


class PenaltyBudget(_Budget):
    """weight * mean: every unit costs the same."""

    kind: Literal["penalty"] = "penalty"
    weight: pydantic.PositiveFloat
    """Nats for all the width there is."""

    def term(self, mean: "Tensor", price: "Tensor") -> "Tensor":
        return self.weight * mean


class TargetedBudget(_Budget):
    """One that names the mean it brings widths down to."""

    target: float = Field(gt=0, le=1)
    """The mean fraction to come down to."""
    scope: Literal["model", "layer"] = "model"
    """model: one term for the mean over all layers, weighted by their FLOPs. layer: one term for the mean of each
    layer; the terms are summed with the same weights, so that one weight or rate means the same in both."""

    @property
    def is_layerwise(self) -> bool:
        return self.scope == "layer"

    def check(self, model: ModelConfig) -> None:
        """Also where not even the narrowest widths meet the target."""
        super().check(model)
        layers = dynamic_layers(model)
        narrowest = [layer.narrowest for layer in layers]
        if self.is_layerwise:
            least = max(each for each in narrowest if each < 1)  # a layer without a choice has nothing to bring down
        else:
            least = sum(map(mul, flops_shares(layers), narrowest))
        if self.target <= least:
            raise UserError(
                f"train.width_budget.target: got {self.target}; must be above {least:.4g}, the narrowest that the "
                "model allows (min_fraction of ffn)"
            )


class QuadraticBudget(TargetedBudget):
    """weight * max(0, mean - target)^2: costs nothing below the target, and holds the mean near it, not at it.

    With several micro-batches a step, each has a mean of its own.
    """

    kind: Literal["quadratic"] = "quadratic"
    weight: pydantic.PositiveFloat
    """Nats per squared fraction."""

    def term(self, mean: "Tensor", price: "Tensor") -> "Tensor":
        return self.weight * (mean - self.target).clamp(min=0).square()


class LagrangianBudget(TargetedBudget):
    """price * (mean - target), where every step moves the price by rate * (mean - target), but not below 0.

    The price settles where the mean meets the target; it is then what a unit more would be worth to the loss. Alone it
    lags: it still rises while the widths come down, and they overshoot. So in each forward pass `damping` * (mean -
    target) is added to it, again not below 0, which makes the term an augmented Lagrangian (Hestenes 1969); with
    damping 0 the term is linear in the tokens, and micro-batches do not matter.
    """

    has_price: ClassVar[bool] = True
    kind: Literal["lagrangian"] = "lagrangian"
    rate: pydantic.PositiveFloat = 0.003
    """Nats that the price rises in a step for all the width there is; damping / rate is how many steps it takes."""
    damping: pydantic.NonNegativeFloat = 1.0
    """Nats for all the width there is."""

    def term(self, mean: "Tensor", price: "Tensor") -> "Tensor":
        return self._moved(price, mean.detach(), self.damping) * (mean - self.target)

    def next_price(self, mean: "Tensor", price: "Tensor") -> "Tensor":
        return self._moved(price, mean, self.rate)

    def _moved(self, price: "Tensor", mean: "Tensor", gain: float) -> "Tensor":
        return (price + gain * (mean - self.target)).clamp(min=0)


WidthBudgetConfig = Annotated[QuadraticBudget | PenaltyBudget | LagrangianBudget, Field(discriminator="kind")]


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
    """Every step also sees the narrowest width; the drawn one then lies between it and the full one."""
    chosen: bool = True
    """A step still has its pass at the widths that tokens choose. Without it nothing trains the choice, and
    the reported training loss is the one at full width."""
    distill: DistillConfig | None = None
    """Passes at narrower widths, the one at chosen widths included, learn from the pass at full width."""

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
        return self.n_passes * model.cost().training_flops(seq_len) + n_pulled * model.head_cost.flops

    def check(self, model: ModelConfig) -> None:
        """Raises UserError where no layer of the model has narrower widths."""
        layers = dynamic_layers(model)
        if not layers or forced_fractions(layers, self.n_widths)[0] == 1:
            raise UserError(
                "train.nested: no layer of the model has more than one width; only ffn.kind 'dynamic' and "
                "'dynamic_hourglass' with min_fraction below 1 do"
            )
