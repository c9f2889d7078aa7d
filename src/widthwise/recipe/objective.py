"""Terms of the objective in addition to the loss, in `train:` of a recipe: a width budget, forced widths, a teacher.

The loss does not reward narrow widths, so a width budget puts a price on the units that dynamic-width layers use. The
width fraction of a layer is differentiable even if its mask is not, so a budget always has a gradient. The budget is
part of the objective, never of a reported loss.
"""

import math
from typing import Literal

import pydantic
from pydantic import Field

from widthwise.config_io import Config
from widthwise.mistakes import UserError
from widthwise.model.config import ModelConfig
from widthwise.model.dynamic_layers import chooses_width, dynamic_layers, flops_shares
from widthwise.sizes import Count, NTokens, VocabSize, Width


class WidthBudgetConfig(Config):
    """Adds price * (mean - target), where each step adds rate * (mean - target) to the price, clamped at 0.

    mean: the fraction of the hidden width that tokens use, averaged over the tokens of a forward pass and over layers,
    weighted by their FLOPs. With the mean at the target, the price settles at -d(loss) / d(mean), the marginal value of
    width. A price alone lags, so that widths overshoot. Each forward pass therefore uses max(0, price + damping *
    (mean - target)) as its price, an augmented Lagrangian (Hestenes 1969). With damping 0 the term is linear in the
    tokens and does not depend on micro-batches.
    """

    kind: Literal["lagrangian"] = "lagrangian"
    target: float = Field(gt=0, le=1)
    """Target of the mean fraction."""
    rate: pydantic.PositiveFloat = 0.003
    """Rise of the price in a step, per unit of mean - target. It adapts in about damping / rate steps."""
    damping: pydantic.NonNegativeFloat = 1.0
    """In nats, like the price."""

    def check(self, model: ModelConfig) -> None:
        """Raise UserError unless tokens choose widths, and can go below the target."""
        if not chooses_width(model):
            raise UserError(
                "train.width_budget: no layer of the model chooses its width; use ffn.kind 'dynamic' with a mask and "
                "min_fraction below 1"
            )
        layers = dynamic_layers(model)
        least = sum(share * layer.narrowest for share, layer in zip(flops_shares(layers), layers))
        if self.target <= least:
            raise UserError(
                f"train.width_budget.target: got {self.target}; must be above {least:.4g}, the smallest mean "
                "fraction (ffn.min_fraction)"
            )


class NestedConfig(Config):
    """Each step makes a pass at full width and one at a narrower width, drawn for the step, with equal weights.

    Both force their width on all tokens in all dynamic layers.
    """

    n_widths: Count = Field(default=4, ge=2)
    """Number of widths, in equal steps from the smallest min_fraction to full width."""
    chosen: bool = True
    """Also make a pass at the widths that tokens choose. Otherwise the choice is not trained, and the reported training
    loss is at full width."""

    def check(self, model: ModelConfig) -> None:
        """Raise UserError if no layer of the model has narrower widths."""
        if all(layer.config.min_fraction == 1 for layer in dynamic_layers(model)):
            raise UserError(
                "train.nested: no layer of the model has more than one width; use ffn.kind 'dynamic' with "
                "min_fraction below 1"
            )


class TeacherSizes(Config):
    """Sizes of a teacher, read once from its run, so that costs of its student can be computed without the run."""

    teacher: str
    seq_len: NTokens
    vocab_size: VocabSize
    params: pydantic.PositiveInt
    flops_per_token: pydantic.PositiveFloat
    """Forward FLOPs at seq_len, including the head."""
    d_model: Width
    root_params: pydantic.PositiveInt
    """Parameters outside of layers."""
    layer_params: pydantic.PositiveInt
    """Parameters of the largest layer."""
    pass_elements: pydantic.PositiveInt
    """Most elements per token in its forward pass: the activations of one sublayer and 4 * d_model."""

    @classmethod
    def of(cls, teacher: str, model: ModelConfig, seq_len: int) -> "TeacherSizes":
        """Return the sizes of a model. teacher: its run."""
        sublayers = [list(costs.values()) for costs in model.layer_costs()]
        layer_params = [sum(cost.params for cost in costs) for costs in sublayers]
        largest = max(cost.activation_bytes(4) / 4 for costs in sublayers for cost in costs)
        return cls(
            teacher=teacher,
            seq_len=seq_len,
            vocab_size=model.vocab_size,
            params=int(model.cost().params),
            flops_per_token=model.inference_cost().forward_flops(seq_len),
            d_model=model.d_model,
            root_params=int(model.cost().params - sum(layer_params)),
            layer_params=int(max(layer_params)),
            pass_elements=math.ceil(4 * model.d_model + largest),
        )


class DistillConfig(Config):
    """The model also learns the predictions of a trained one; Hinton et al. 2015, arXiv:1503.02531.

    The objective is (1 - weight) * loss + weight * temperature^2 * KL(teacher || student), where both predict
    softmax(logits / temperature). Reported losses are for the targets, and MTP heads learn from targets only.
    """

    teacher: str
    """Run directory, relative to the working directory. Training reads its newest undamaged checkpoint at the start."""
    weight: float = Field(default=0.5, ge=0, le=1)
    """Share of the teacher in the objective."""
    temperature: float = Field(default=1.0, ge=1e-3, le=1e3)
    """Above 1 the student learns more from tokens that the teacher considers unlikely."""
    sizes: TeacherSizes | None = None
    """Filled in when a recipe is read."""

    def check(self, model: ModelConfig) -> None:
        """Raise UserError if student and teacher differ in vocab_size."""
        if self.sizes is not None and self.sizes.vocab_size != model.vocab_size:
            raise UserError(
                f"train.distill.teacher: {self.teacher} has vocab_size {self.sizes.vocab_size}; must be "
                f"model.vocab_size = {model.vocab_size}"
            )
