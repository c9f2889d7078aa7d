"""Masks: which units a token uses, given its width.

A layer has d_ff units; unit i has its centre at c_i = i + 1/2. A token of width w, in units, uses those whose centres
lie below w. A step has no derivative in w, so the masks differ in how they fall from 1 to 0 and in what they use as
derivative.

In a grown layer the centres of new units lie between the old ones, which keep theirs, and temperatures keep their
meaning. `d_ff` in this file is therefore the value before any growth.
"""

from abc import ABC
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import pydantic
import torch
from pydantic import Field
from torch import Tensor, nn

from widthwise.config_io import Config
from widthwise.kernels.sliced_swiglu import Mask
from widthwise.model.axes import Vector
from widthwise.model.cost import Cost, vector
from widthwise.sizes import Count


class Edge(NamedTuple):
    """How a mask falls from 1 to 0 around the width."""

    mask: Mask
    margin: float
    """Distance from the width, in units, beyond which the mask is exactly 1 or 0 with no derivative; see
    `sliced_swiglu`."""


def step(width: Tensor, centres: Tensor) -> Tensor:
    """1 for centres below the width, else 0."""
    return (width > centres).to(width.dtype)


HARD = Edge(step, 0.0)


class WidthMaskConfig(Config):
    """A kind of mask and its options. The default is a step."""

    has_width: ClassVar[bool] = True
    """Whether tokens have widths at all."""
    is_exact: ClassVar[bool] = True
    """Whether the mask is exactly 1 for every unit below the token's own width, in training as well."""

    def at_width(self, d_ff: int) -> Self:
        """The config with all that depends on d_ff written out. Raises ValueError if an option does not suit d_ff."""
        return self

    def cost(self) -> Cost:
        """Cost of its parameters."""
        return Cost()

    def drawn(self, level: Tensor) -> Tensor:
        """See `WidthMask.drawn`; called in training only."""
        return level

    def build(self, d_ff: int) -> "WidthMask":
        return WidthMask(self)


class WidthMask(nn.Module):
    """The mask of a layer. It may differ between training and evaluation."""

    def __init__(self, config: WidthMaskConfig, temperature: "Temperature | None" = None):
        super().__init__()
        self.config, self.temperature = config, temperature

    def drawn(self, level: Tensor) -> Tensor:
        """The level (B, T) to use instead of the score's, from 0 (narrowest) to 1 (widest)."""
        return self.config.drawn(level) if self.training else level

    def edge(self, progress: Tensor) -> Edge:
        """The edge to use now. progress: how far training is, a scalar from 0 to 1."""
        return HARD if self.temperature is None else self.temperature.edge(progress)


class HardMaskConfig(WidthMaskConfig):
    """A step, as the paper writes it. No gradient reaches the score through it."""

    kind: Literal["hard"] = "hard"


class TemperedMaskConfig(WidthMaskConfig, ABC):
    """A mask that falls gradually, over a temperature T: by default sigmoid((w - c) / T)."""

    is_exact = False
    temperature: pydantic.PositiveFloat | None = None
    """T, in units: a sigmoid falls from 0.9 to 0.1 within 4.4 T. null: d_ff / 32, but at least 1."""

    @property
    def is_learned(self) -> bool:
        """Whether T is a parameter."""
        return False

    @property
    def evaluates_as_step(self) -> bool:
        """Whether evaluation uses the step instead."""
        return True

    def at_width(self, d_ff: int) -> Self:
        return self.model_copy(update={"temperature": self.first_temperature(d_ff)})

    def cost(self) -> Cost:
        return vector(1) if self.is_learned else Cost()

    def first_temperature(self, d_ff: int) -> float:
        """T at the start of training, in units."""
        return self.temperature or max(1.0, d_ff / 32)

    def scheduled(self, first: float, progress: Tensor) -> Tensor | float:
        """T in units, if it is not learned, at this point of training. first: T at the start."""
        return first

    def edge(self, temperature: Tensor | float, highest: float) -> Edge:
        """The edge at a temperature in units, which never exceeds `highest`."""
        return Edge(lambda width, centres: torch.sigmoid((width - centres) / temperature), torch.inf)

    def build(self, d_ff: int) -> WidthMask:
        return WidthMask(self, Temperature(self, d_ff))


def highest_temperature(d_ff: int) -> float:
    """Upper bound of a learned temperature, in units. Softening the mask lowers the loss, so T would rise for ever."""
    return max(1.0, d_ff / 16)


class Temperature(nn.Module):
    """T in units: as scheduled by the config, or first * exp(theta) clamped to 1 ... `highest_temperature`."""

    def __init__(self, config: TemperedMaskConfig, d_ff: int):
        super().__init__()
        self.config, self.first = config, config.first_temperature(d_ff)
        self.theta = Vector({}, 0.0) if config.is_learned else None
        self.highest = highest_temperature(d_ff) if config.is_learned else self.first

    def forward(self, progress: Tensor) -> Tensor | float:
        """T in units. progress: how far training is, a scalar from 0 to 1."""
        if self.theta is None:
            return self.config.scheduled(self.first, progress)
        return (self.first * self.theta().exp()).clamp(1.0, self.highest)

    def edge(self, progress: Tensor) -> Edge:
        """See `WidthMask.edge`."""
        if self.config.evaluates_as_step and not self.training:
            return HARD
        return self.config.edge(self(progress), self.highest)


class LearnableMaskConfig(TemperedMaskConfig, ABC):
    """A mask whose temperature can be learned."""

    learn_temperature: bool = False
    """Whether T is a parameter; it is clamped to 1 ... d_ff / 16."""

    @property
    def is_learned(self) -> bool:
        return self.learn_temperature

    def at_width(self, d_ff: int) -> Self:
        first, highest = self.first_temperature(d_ff), highest_temperature(d_ff)
        if self.learn_temperature and not 1 <= first <= highest:
            got = f"mask.temperature: got {first:g}; where d_ff = {d_ff} (before any growth)"
            raise ValueError(f"{got} a learned one lies between 1 and {highest:g}")
        return super().at_width(d_ff)


class StraightThroughMaskConfig(LearnableMaskConfig):
    """Straight-through: a step whose gradient is that of sigmoid((w - c) / T)."""

    is_exact = True
    kind: Literal["ste"] = "ste"

    def edge(self, temperature: Tensor | float, highest: float) -> Edge:
        def mask(width: Tensor, centres: Tensor) -> Tensor:
            soft = torch.sigmoid((width - centres) / temperature)
            return step(width, centres) + (soft - soft.detach())  # the difference is exactly 0

        return Edge(mask, torch.inf)


class SoftMaskConfig(LearnableMaskConfig):
    """sigmoid((w - c) / T) in training and evaluation."""

    kind: Literal["soft"] = "soft"
    hard_eval: bool = False
    """Whether evaluation uses the step instead; measure the difference it makes."""

    @property
    def evaluates_as_step(self) -> bool:
        return self.hard_eval


class AnnealedMaskConfig(TemperedMaskConfig):
    """sigmoid((w - c) / T) with a T that shrinks exponentially during training; a step in evaluation."""

    kind: Literal["anneal"] = "anneal"
    final_temperature: pydantic.PositiveFloat = 1.0
    """T at the end of training, in units."""

    def scheduled(self, first: float, progress: Tensor) -> Tensor | float:
        return first * (self.final_temperature / first) ** progress


class LinearRampMaskConfig(LearnableMaskConfig):
    """(w - c) / T + 1/2, clamped to 0 ... 1: it falls over T units and has a gradient only there."""

    kind: Literal["linear_ramp"] = "linear_ramp"

    @property
    def evaluates_as_step(self) -> bool:
        return False

    def edge(self, temperature: Tensor | float, highest: float) -> Edge:
        return Edge(lambda width, centres: ((width - centres) / temperature + 0.5).clamp(0, 1), highest / 2)


class NestedMaskConfig(WidthMaskConfig):
    """A step at a random width in training, so that the first units learn to work without the others.

    The score gets no gradient from the loss then; train it afterwards with another mask. Sources: MatFormer,
    arXiv:2310.07707; nested dropout, Rippel et al. 2014.
    """

    is_exact = False
    kind: Literal["nested"] = "nested"
    n_buckets: Count = Field(default=4, ge=2)
    """Number of widths to draw from, in equal steps from the narrowest to d_ff."""
    per: Literal["token", "batch"] = "token"
    """Whether each token draws its own width, or all tokens of a forward pass share one; layers draw independently."""

    def drawn(self, level: Tensor) -> Tensor:
        shape = level.shape if self.per == "token" else (1, 1)
        bucket = torch.randint(self.n_buckets, shape, device=level.device)
        return (bucket.to(level.dtype) / (self.n_buckets - 1)).expand_as(level)


class NoMaskConfig(WidthMaskConfig):
    """Every token uses every unit, and there is no score: a plain SwiGLU, unless a width is forced on it."""

    kind: Literal["none"] = "none"
    has_width: ClassVar[bool] = False


AnyWidthMask = Annotated[
    HardMaskConfig
    | StraightThroughMaskConfig
    | SoftMaskConfig
    | AnnealedMaskConfig
    | LinearRampMaskConfig
    | NestedMaskConfig
    | NoMaskConfig,
    Field(discriminator="kind"),
]
