"""The optimizers and learning rates of a recipe, selected by `kind`, and its number of steps.

Learning rates are pure functions of the step, which is counted from 1.
"""

import math
from abc import ABC, abstractmethod
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
from pydantic import Discriminator, Field, Tag

from widthwise.config_io import Config, mistakes_at
from widthwise.mistakes import UserError

if TYPE_CHECKING:
    import torch

    from widthwise.model.decoder import Decoder

MODULE = "widthwise.recipe.optimizers"
"""Module that builds optimizers with torch, which recipes do not import."""

BelowOne = Annotated[float, Field(ge=0, lt=1)]


class AdamWConfig(Config):
    """AdamW with decoupled weight decay. Source: Loshchilov and Hutter 2019, arXiv:1711.05101."""

    kind: Literal["adamw"] = "adamw"
    lr: pydantic.PositiveFloat
    """Learning rate of embedding, head and gains; hidden matrices have lr / model.init.width_multiplier."""
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.95)
    eps: pydantic.PositiveFloat = 1e-10
    weight_decay: pydantic.NonNegativeFloat = 0.1
    """Weight decay of the matrices; see the next three options for other parameters."""
    decays_embedding: bool = True
    """Decay the embedding, a tied head and learned positions; OLMo 2: no. An untied head always decays."""
    decays_gains: bool = False
    """Decay the gains of the norms; OLMo 2: yes."""
    decays_scales: bool = True
    """Decay the scales of dynamic hyper-connections, as the paper can be interpreted. With false, decay cannot turn the
    dynamic part off."""
    lr_follows_layer_width: bool = False
    """Multiply the rate of a layer's matrices by model.d_model / (the layer's width)."""
    lr_factors: dict[str, pydantic.PositiveFloat] = Field(default_factory=dict)
    """Part of the model -> factor of the learning rate of its parameters, such as `{w_reduce: 0.1, w_expand: 0.1}`. A
    part is one or several consecutive names of a parameter's path: `w_reduce`, `exit`, `layers.3`, `layers.3.ffn`. In
    `adamw` of Muon the factors apply to both optimizers."""
    scaled: dict[str, pydantic.PositiveFloat] = Field(default_factory=dict)
    """Parameter -> factor by which `bake` multiplied it. Its rate is multiplied by that factor, and eps and weight
    decay are divided by it, so that training continues unchanged, except for the clipping of gradients, whose norm
    changes. In `adamw` of Muon the factors apply to both optimizers."""

    @property
    def settling_steps(self) -> int:
        """Time constant of the slowest moving average, in steps."""
        return round(1 / (1 - max(self.betas)))

    @property
    def adamw(self) -> "AdamWConfig":
        """The optimizer itself, as `MuonConfig.adamw`."""
        return self

    def with_scaled(self, factors: dict[str, float]) -> "AdamWConfig":
        """Return a copy with another `scaled`."""
        return self.model_copy(update={"scaled": factors})

    def build(self, model: "Decoder") -> "torch.optim.Optimizer":
        """Build the optimizer of a model. Raise UserError if a key of `scaled` or `lr_factors` matches no parameter."""
        return import_module(MODULE).adamw(self, model)


class MuonConfig(Config):
    """Muon for hidden matrices, whose momentum is made orthogonal before each step, and AdamW for other parameters.

    Hidden matrices map one hidden state to another. Other parameters are the embedding, the head, gains and biases, the
    coefficients of hyper-connections and of mixtures of slots, maps to coefficients, to widths or to scores of experts,
    and the matrices of experts, which share a parameter and would be made orthogonal to each other. The iteration is
    torch's: five steps with the coefficients of the source, which map singular values between 0.01 and 1 to between
    0.68 and 1.14. Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/.
    """

    kind: Literal["muon"] = "muon"
    lr: pydantic.PositiveFloat
    """Learning rate of hidden matrices. It is not divided by model.init.width_multiplier."""
    momentum: BelowOne = 0.95
    nesterov: bool = True
    """Add the gradient to the momentum again, as a look-ahead."""
    weight_decay: pydantic.NonNegativeFloat = 0.1
    """Weight decay of hidden matrices."""
    adjust_lr: Literal["original", "match_rms_adamw"] = "original"
    """Factor of an orthogonal matrix, in addition to lr. `original`: sqrt(max(1, n_out / n_in)), for equal step sizes
    at all widths. `match_rms_adamw`: 0.2 sqrt(max(n_out, n_in)), for entries as large as AdamW's, so that its learning
    rate can be used (Liu et al. 2025, arXiv:2502.16982)."""
    adamw: AdamWConfig
    """The optimizer of other parameters; its rate follows the same schedule."""

    @property
    def settling_steps(self) -> int:
        """Time constant of the slowest moving average, in steps."""
        return max(round(1 / (1 - self.momentum)), self.adamw.settling_steps)

    def with_scaled(self, factors: dict[str, float]) -> "MuonConfig":
        """Return a copy with another `adamw.scaled`."""
        return self.model_copy(update={"adamw": self.adamw.with_scaled(factors)})

    def build(self, model: "Decoder") -> "torch.optim.Optimizer":
        """Build both optimizers of a model. Raises as `AdamWConfig.build`."""
        return import_module(MODULE).muon(self, model)


def _kind(optimizer: Any) -> Any:
    """Return the kind of an optimizer section; by default AdamW."""
    return optimizer.get("kind", "adamw") if isinstance(optimizer, dict) else getattr(optimizer, "kind", "adamw")


Optimizer = Annotated[Annotated[AdamWConfig, Tag("adamw")] | Annotated[MuonConfig, Tag("muon")], Discriminator(_kind)]


Fraction = Annotated[float, pydantic.Field(ge=0, le=1)]


class _Schedule(Config, ABC):
    """Base of schedules: linear warm-up, then a shape."""

    warmup_steps: pydantic.NonNegativeInt = 0
    """Steps in which the rate rises linearly from 0."""

    def factor(self, step: int, lr: float, total_steps: int, tokens_per_step: int) -> float:
        """Return the factor of the learning rates at a step from 1 to total_steps. lr: the recipe's rate."""
        shape = self._shape(max(step, self.warmup_steps, 1), lr, total_steps, tokens_per_step)
        return shape * step / self.warmup_steps if step < self.warmup_steps else shape

    def check(self, total_steps: int) -> None:
        """Raise UserError if the schedule does not fit into the run."""
        if self.warmup_steps >= total_steps:
            raise UserError(
                f"schedule.warmup_steps: got {self.warmup_steps}; must be less than train.steps = {total_steps}"
            )

    @abstractmethod
    def _shape(self, step: int, lr: float, total_steps: int, tokens_per_step: int) -> float:
        """Return the factor without warm-up. See `factor` for the arguments."""


class PowerSchedule(_Schedule):
    """lr = min(recipe's lr, a * (tokens seen)^b). Source: arXiv:2408.13359; the variable-width paper's schedule."""

    kind: Literal["power"] = "power"
    a: pydantic.PositiveFloat | None = None
    """null: tokens per step / 1024, as in the variable-width paper at every size."""
    b: pydantic.NegativeFloat = -0.566
    c: pydantic.PositiveInt | None = None
    """Tokens per step. null: batch_size * seq_len of the recipe."""

    def _shape(self, step: int, lr: float, total_steps: int, tokens_per_step: int) -> float:
        c = tokens_per_step if self.c is None else self.c
        a = c / 1024 if self.a is None else self.a
        return min(1.0, a / lr * (step * c) ** self.b)


class CosineSchedule(_Schedule):
    """Half a cosine from 1 to `final_factor` at the last step. Source: Loshchilov and Hutter 2017, arXiv:1608.03983."""

    kind: Literal["cosine"] = "cosine"
    final_factor: Fraction = 0.1

    def _shape(self, step: int, lr: float, total_steps: int, tokens_per_step: int) -> float:
        progress = (step - self.warmup_steps) / (total_steps - self.warmup_steps)
        return self.final_factor + (1 - self.final_factor) * (1 + math.cos(math.pi * progress)) / 2


class WSDSchedule(_Schedule):
    """Constant, then linear down to `final_factor` at the last step. Source: Haegele et al. 2024, arXiv:2405.18392."""

    kind: Literal["wsd"] = "wsd"
    decay_steps: pydantic.PositiveInt | None = None
    """Length of the decay; give this or `decay_fraction`."""
    decay_fraction: Fraction | None = None
    """Length of the decay as a fraction of all steps; 0.2 if neither is given."""
    final_factor: Fraction = 0.0

    @pydantic.model_validator(mode="after")
    def _check_one_length(self) -> "WSDSchedule":
        if self.decay_steps is not None and self.decay_fraction is not None:
            raise ValueError("decay_steps: conflicts with decay_fraction; give one of them")
        return self

    def n_decay_steps(self, total_steps: int) -> int:
        if self.decay_steps is not None:
            return self.decay_steps
        return round((0.2 if self.decay_fraction is None else self.decay_fraction) * total_steps)

    def check(self, total_steps: int) -> None:
        super().check(total_steps)
        n_decay = self.n_decay_steps(total_steps)
        if n_decay > total_steps - self.warmup_steps:
            raise UserError(
                f"schedule: the decay takes {n_decay} steps, but warm-up leaves {total_steps - self.warmup_steps} of "
                f"train.steps = {total_steps}; lower schedule.warmup_steps or the decay"
            )

    def _shape(self, step: int, lr: float, total_steps: int, tokens_per_step: int) -> float:
        n_decay = self.n_decay_steps(total_steps)
        decayed = max(0, step - (total_steps - n_decay)) / max(1, n_decay)
        return 1 - (1 - self.final_factor) * decayed


class ConstantSchedule(_Schedule):
    """The recipe's rate after the warm-up."""

    kind: Literal["constant"] = "constant"

    def _shape(self, step: int, lr: float, total_steps: int, tokens_per_step: int) -> float:
        return 1.0


Schedule = Annotated[
    PowerSchedule | CosineSchedule | WSDSchedule | ConstantSchedule, pydantic.Field(discriminator="kind")
]


ENDLESS = 2**53
"""Placeholder for an unknown number of steps: more than in any run, and exact as a float."""


class FlopBudget(Config):
    """A budget that can replace the number of steps in a recipe, for any cost and growth of the model."""

    training_flops: pydantic.PositiveFloat
    """Training FLOPs of the whole run, in which each phase counts with its model. The number of steps is rounded to the
    nearest."""

    @classmethod
    def of(cls, data: Any) -> "FlopBudget | None":
        """Return the budget in the data of a recipe; None if they give a number of steps. May raise UserError."""
        match data:
            case {"train": {"steps": dict(steps)}}:
                with mistakes_at("train.steps"):
                    return cls.model_validate(steps)
        return None


_AS_BUDGET = {"training_flops": {"type": "number", "exclusiveMinimum": 0}}
_AS_STEPS_OR_BUDGET = [
    {"type": "integer", "exclusiveMinimum": 0},
    {"type": "object", "properties": _AS_BUDGET, "additionalProperties": False},
]
Steps = Annotated[pydantic.PositiveInt, pydantic.WithJsonSchema({"anyOf": _AS_STEPS_OR_BUDGET})]
"""A number of steps; in the file of a recipe also a budget."""
