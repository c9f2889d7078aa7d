"""Terms that the objective adds to the loss, in `train:` of a recipe: a width budget, forced widths, a teacher.

Of layers that choose their width, training can put a price on the units that they use, and make passes at forced
widths: the loss alone does not reward a narrow width. The fraction of a layer's width is differentiable even where its
mask is not, so the term of a budget always has a gradient. It joins the objective only, never a reported loss.
"""

import math
from operator import mul
from typing import Literal

import pydantic
from pydantic import Field

from widthwise.config_io import Config, UserError
from widthwise.model.config import ModelConfig
from widthwise.model.dynamic_layers import chooses_width, dynamic_layers, flops_shares, forced_fractions
from widthwise.sizes import WIDEST, Count, NTokens, VocabSize


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
                "train.width_budget: no layer of the model chooses its width; those of ffn.kind 'dynamic' do, "
                "with a mask and min_fraction below 1"
            )
        layers = dynamic_layers(model)
        least = sum(map(mul, flops_shares(layers), (layer.narrowest for layer in layers)))
        if self.target <= least:
            raise UserError(
                f"train.width_budget.target: got {self.target}; must be above {least:.4g}, the narrowest that the "
                "model allows (min_fraction of ffn)"
            )


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
                "train.nested: no layer of the model has more than one width; only ffn.kind 'dynamic' with "
                "min_fraction below 1 has"
            )


class TeacherSizes(Config):
    """Sizes of a teacher, read from its run once, so that the costs of its student can be computed without it."""

    teacher: str
    seq_len: NTokens
    vocab_size: VocabSize
    params: pydantic.PositiveInt
    flops_per_token: pydantic.PositiveFloat
    """Forward FLOPs at seq_len, including the head."""
    d_model: int = Field(default=0, ge=0, le=WIDEST)
    """0, as all that follow, in a recipe of a version that did not count them."""
    root_params: pydantic.NonNegativeInt = 0
    """Parameters in no layer."""
    layer_params: pydantic.NonNegativeInt = 0
    """Parameters of the largest layer."""
    pass_elements: pydantic.NonNegativeInt = 0
    """Most numbers per token that its forward pass holds: the numbers of one sublayer, and the stream around it."""

    @classmethod
    def of(cls, teacher: str, model: ModelConfig, seq_len: int) -> "TeacherSizes":
        """Return the sizes of a model. teacher: its run."""
        sublayers = [list(costs.values()) for costs in model.layer_costs()]
        of_layers = [sum(cost.params for cost in costs) for costs in sublayers]
        widest = max(cost.activation_bytes(4) / 4 for costs in sublayers for cost in costs)
        return cls(
            teacher=teacher,
            seq_len=seq_len,
            vocab_size=model.vocab_size,
            params=int(model.cost().params),
            flops_per_token=model.inference_cost().forward_flops(seq_len),
            d_model=model.d_model,
            root_params=int(model.cost().params - sum(of_layers)),
            layer_params=int(max(of_layers)),
            pass_elements=math.ceil(4 * model.d_model + widest),
        )


class DistillConfig(Config):
    """The model also learns the predictions of a trained one; Hinton et al. 2015, arXiv:1503.02531.

    The objective is (1 - weight) * loss + weight * temperature^2 * KL(teacher || student), where both predict
    softmax(logits / temperature). With `layers` it is also layers_weight times the mean, over those layers and all
    tokens, of |h - a|^2 / |a|^2, where h is the stream after a layer, with what narrow layers carry past them, and a
    the teacher's, in the coordinates to which `shrink` turned and cut it; of a student that was not cut, as it is.
    Reported losses are those of the targets, and MTP heads learn from targets alone.
    """

    teacher: str
    """Run directory, relative to the working directory. Its newest good checkpoint is read when training starts."""
    weight: float = Field(default=0.5, ge=0, le=1)
    """Share of the teacher in the objective."""
    temperature: float = Field(default=1.0, ge=1e-3, le=1e3)
    """Above 1 the student learns more of what the teacher holds unlikely."""
    layers: Literal["none", "last", "all"] = "none"
    """Layers that learn the teacher's hidden states besides: none, the last, or every one."""
    layers_weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Factor of the mean squared distance between the states, where layers learn them."""
    sizes: TeacherSizes | None = None
    """Written when the recipe is read."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "DistillConfig":
        if self.layers == "none" and self.layers_weight != 1:
            raise ValueError(f"layers_weight: got {self.layers_weight}; has nothing to weigh where layers is none")
        return self

    def check(self, model: ModelConfig) -> None:
        """Raises UserError where student and teacher predict different tokens."""
        if self.sizes is not None and self.sizes.vocab_size != model.vocab_size:
            raise UserError(
                f"train.distill.teacher: {self.teacher} has vocab_size {self.sizes.vocab_size}; must be "
                f"model.vocab_size = {model.vocab_size}"
            )
