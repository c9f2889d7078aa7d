"""Which of its units a token uses, once its width is chosen.

A layer has d_ff units; unit i has its centre at c_i = i + 1/2. A token of width w, in units, uses those whose centres
lie below w. A step has no derivative in w, so the masks differ in how they step, and in what they take for the
derivative.
"""

from abc import ABC, abstractmethod
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import pydantic
import torch
from pydantic import Field
from torch import Tensor, nn

from widthwise.config_io import Config
from widthwise.kernels.sliced_swiglu.reference import Mask
from widthwise.model.axes import Vector
from widthwise.model.cost import Cost, vector


class Edge(NamedTuple):
    """How a mask falls from 1 to 0 around the width."""

    mask: Mask
    margin: float
    """Units beyond which, on both sides, the mask is 1 or 0 without derivative; see `sliced_swiglu`."""


def step(width: Tensor, centres: Tensor) -> Tensor:
    """1 below the width, else 0."""
    return (width > centres).to(width.dtype)


HARD = Edge(step, 0.0)


class WidthMask(nn.Module, ABC):
    """The mask of a layer. It may differ between training and evaluation."""

    def drawn(self, level: Tensor) -> Tensor:
        """The level (B, T), 0 the narrowest and 1 the widest, that takes the place of the one the score chose."""
        return level

    @abstractmethod
    def edge(self, progress: Tensor) -> Edge:
        """progress: how far training is, a scalar from 0 to 1."""


class WidthMaskConfig(Config, ABC):
    """A kind of mask and its options."""

    has_width: ClassVar[bool] = True
    """Whether a token has a width at all."""

    def at_width(self, d_ff: int) -> Self:
        """With everything that depends on d_ff written out. Raises ValueError where an option does not suit it."""
        return self

    def cost(self) -> Cost:
        """The parameters."""
        return Cost()

    @abstractmethod
    def build(self, d_ff: int) -> WidthMask: ...


class HardMaskConfig(WidthMaskConfig):
    """A step, as the paper writes it. No gradient reaches the score through it."""

    kind: Literal["hard"] = "hard"

    def build(self, d_ff: int) -> "HardMask":
        return HardMask()


class HardMask(WidthMask):
    def edge(self, progress: Tensor) -> Edge:
        return HARD


def highest_temperature(d_ff: int) -> float:
    """Where a learned temperature stops, in units: a loss falls by softening the mask, so it would rise for ever."""
    return max(1.0, d_ff / 16)


class TemperedMaskConfig(WidthMaskConfig, ABC):
    """A mask that falls over some units."""

    temperature: pydantic.PositiveFloat | None = None
    """T, in units: a sigmoid falls from 0.9 to 0.1 within 4.4 T. null: d_ff / 32, but at least 1."""

    def at_width(self, d_ff: int) -> Self:
        return self.model_copy(update={"temperature": max(1.0, d_ff / 32)}) if self.temperature is None else self


class LearnableMaskConfig(TemperedMaskConfig, ABC):
    """A mask whose temperature can be learned."""

    learn_temperature: bool = False
    """Whether T is a parameter; it stays between 1 and d_ff / 16."""

    def at_width(self, d_ff: int) -> Self:
        explicit, highest = super().at_width(d_ff), highest_temperature(d_ff)
        assert explicit.temperature is not None
        if self.learn_temperature and not 1 <= explicit.temperature <= highest:
            got = f"mask.temperature: got {explicit.temperature:g}"
            raise ValueError(f"{got}; where d_ff = {d_ff} a learned one lies between 1 and {highest:g}")
        return explicit

    def cost(self) -> Cost:
        return vector(1) if self.learn_temperature else Cost()


class Temperature(nn.Module):
    """T in units: a constant, or start * exp(theta) held between 1 and `highest_temperature`."""

    def __init__(self, config: LearnableMaskConfig, d_ff: int):
        super().__init__()
        assert config.temperature is not None
        self.start, self.highest = config.temperature, highest_temperature(d_ff)
        self.theta = Vector({}, 0.0) if config.learn_temperature else None

    def forward(self) -> Tensor | float:
        return self.start if self.theta is None else (self.start * self.theta().exp()).clamp(1.0, self.highest)

    @property
    def bound(self) -> float:
        """What it never exceeds."""
        return self.start if self.theta is None else self.highest


class StraightThroughMaskConfig(LearnableMaskConfig):
    """A step whose gradient is that of sigmoid((w - c) / T)."""

    kind: Literal["ste"] = "ste"

    def build(self, d_ff: int) -> "StraightThroughMask":
        return StraightThroughMask(self, d_ff)


class StraightThroughMask(WidthMask):
    def __init__(self, config: StraightThroughMaskConfig, d_ff: int):
        super().__init__()
        self.temperature = Temperature(config, d_ff)

    def edge(self, progress: Tensor) -> Edge:
        if not self.training:
            return HARD
        temperature = self.temperature()

        def mask(width: Tensor, centres: Tensor) -> Tensor:
            soft = torch.sigmoid((width - centres) / temperature)
            return step(width, centres) + (soft - soft.detach())  # the difference is exactly 0

        return Edge(mask, torch.inf)


class SoftMaskConfig(LearnableMaskConfig):
    """sigmoid((w - c) / T)."""

    kind: Literal["soft"] = "soft"
    hard_eval: bool = False
    """Whether evaluation uses the step; the difference it makes should be measured."""

    def build(self, d_ff: int) -> "SoftMask":
        return SoftMask(self, d_ff)


class SoftMask(WidthMask):
    def __init__(self, config: SoftMaskConfig, d_ff: int):
        super().__init__()
        self.temperature, self.hard_eval = Temperature(config, d_ff), config.hard_eval

    def edge(self, progress: Tensor) -> Edge:
        if self.hard_eval and not self.training:
            return HARD
        return sigmoid_edge(self.temperature())


def sigmoid_edge(temperature: Tensor | float) -> Edge:
    """sigmoid((w - c) / temperature), nowhere exactly 0."""
    return Edge(lambda width, centres: torch.sigmoid((width - centres) / temperature), torch.inf)


class AnnealedMaskConfig(TemperedMaskConfig):
    """sigmoid((w - c) / T) with a T that shrinks in equal ratios over the training; a step in evaluation."""

    kind: Literal["anneal"] = "anneal"
    final_temperature: pydantic.PositiveFloat = 1.0
    """T at the end of training, in units."""

    def build(self, d_ff: int) -> "AnnealedMask":
        assert self.temperature is not None
        return AnnealedMask(self.temperature, self.final_temperature)


class AnnealedMask(WidthMask):
    def __init__(self, first: float, last: float):
        super().__init__()
        self.first, self.last = first, last

    def edge(self, progress: Tensor) -> Edge:
        return sigmoid_edge(self.first * (self.last / self.first) ** progress) if self.training else HARD


class LinearRampMaskConfig(LearnableMaskConfig):
    """(w - c) / T + 1/2, held between 0 and 1: it falls over T units and has a gradient only there."""

    kind: Literal["linear_ramp"] = "linear_ramp"

    def build(self, d_ff: int) -> "LinearRampMask":
        return LinearRampMask(self, d_ff)


class LinearRampMask(WidthMask):
    def __init__(self, config: LinearRampMaskConfig, d_ff: int):
        super().__init__()
        self.temperature = Temperature(config, d_ff)

    def edge(self, progress: Tensor) -> Edge:
        temperature = self.temperature()
        return Edge(
            lambda width, centres: ((width - centres) / temperature + 0.5).clamp(0, 1), self.temperature.bound / 2
        )


class NestedMaskConfig(WidthMaskConfig):
    """A step at a width drawn at random in training, so that the first units learn to do without the others.

    The score learns nothing from the loss then; train it afterwards with another mask. Source: MatFormer,
    arXiv:2310.07707; nested dropout, Rippel et al. 2014.
    """

    kind: Literal["nested"] = "nested"
    n_buckets: int = Field(default=4, ge=2)
    """Widths to draw from, in equal steps from the narrowest to d_ff."""
    per: Literal["token", "batch"] = "token"
    """Whether each token draws, or all tokens of a forward pass share one draw; layers draw apart."""

    def build(self, d_ff: int) -> "NestedMask":
        return NestedMask(self)


class NestedMask(WidthMask):
    def __init__(self, config: NestedMaskConfig):
        super().__init__()
        self.config = config

    def drawn(self, level: Tensor) -> Tensor:
        if not self.training:
            return level
        shape = level.shape if self.config.per == "token" else (1, 1)
        bucket = torch.randint(self.config.n_buckets, shape, device=level.device)
        return (bucket.to(level.dtype) / (self.config.n_buckets - 1)).expand_as(level)

    def edge(self, progress: Tensor) -> Edge:
        return HARD


class NoMaskConfig(WidthMaskConfig):
    """Every token uses every unit, and no score is built: a plain SwiGLU, except where a width is forced on it."""

    kind: Literal["none"] = "none"
    has_width: ClassVar[bool] = False

    def build(self, d_ff: int) -> "HardMask":
        return HardMask()


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
