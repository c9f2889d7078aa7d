"""The number of steps of a run, and learning rates as pure functions of the step, which is counted from 1."""

import math
from abc import ABC, abstractmethod
from typing import Annotated, Any, Literal

import pydantic

from widthwise.config_io import Config, mistakes_at
from widthwise.mistakes import UserError

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
