"""Masks: which units a token uses, given its width.

A layer has d_ff units; unit i has its centre at c_i = i + 1/2. A token of width w, in units, uses those whose centres
lie below w. A step has no derivative in w, so the masks differ in how they fall from 1 to 0 and in what they use as
derivative.

In a grown layer the centres of new units are between the old ones, which keep theirs, and temperatures keep their
meaning. `d_ff` in this file is therefore the value before any growth.
"""

from abc import ABC
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

import pydantic
from pydantic import Field

from widthwise.config_io import Config
from widthwise.model.cost import Cost, vector
from widthwise.sizes import Count

if TYPE_CHECKING:
    from torch import Tensor

    from widthwise.model.ffn.width_mask_module import WidthMask


class WidthMaskConfig(Config):
    """A kind of mask and its options. The default is a step."""

    module: ClassVar[str] = "widthwise.model.ffn.width_mask_module:WidthMask"
    """The class of the module; see `FFNConfig.module`."""
    has_width: ClassVar[bool] = True
    """True if tokens have widths at all."""
    is_exact: ClassVar[bool] = True
    """True if the mask is exactly 1 for every unit below the token's own width, in training as well."""

    def at_width(self, d_ff: int) -> Self:
        """The config with all that depends on d_ff written out. Raises ValueError if an option does not suit d_ff."""
        return self

    def cost(self) -> Cost:
        """Cost of its parameters."""
        return Cost()

    def build(self, d_ff: int) -> "WidthMask":
        return resolve_name(self.module)(self, d_ff)


class HardMaskConfig(WidthMaskConfig):
    """A step, as the paper writes it. No gradient reaches the score through it."""

    kind: Literal["hard"] = "hard"


class TemperedMaskConfig(WidthMaskConfig, ABC):
    """A mask that falls gradually, over a temperature T: by default sigmoid((w - c) / T)."""

    module = "widthwise.model.ffn.width_mask_module:TemperedMask"
    is_exact = False
    evaluates_as_step: ClassVar[bool] = True
    """True if evaluation uses the step instead."""
    temperature: pydantic.PositiveFloat | None = None
    """T, in units: a sigmoid falls from 0.9 to 0.1 within 4.4 T. null: d_ff / 32, but at least 1."""

    @property
    def is_learned(self) -> bool:
        """True if T is a parameter."""
        return False

    def at_width(self, d_ff: int) -> Self:
        return self.model_copy(update={"temperature": self.first_temperature(d_ff)})

    def cost(self) -> Cost:
        return vector(1) if self.is_learned else Cost()

    def first_temperature(self, d_ff: int) -> float:
        """T at the start of training, in units."""
        return self.temperature or max(1.0, d_ff / 32)

    @staticmethod
    def highest_temperature(d_ff: int) -> float:
        """Upper bound of a learned T, in units. Softening the mask lowers the loss, so T would rise for ever."""
        return max(1.0, d_ff / 16)

    def scheduled(self, first: float, progress: "Tensor") -> "Tensor | float":
        """T in units, if it is not learned, at this point of training. first: T at the start."""
        return first


class LearnableMaskConfig(TemperedMaskConfig, ABC):
    """A mask whose temperature can be learned."""

    learn_temperature: bool = False
    """Make T a parameter; it is clamped to 1 ... d_ff / 16."""

    @property
    def is_learned(self) -> bool:
        return self.learn_temperature

    def at_width(self, d_ff: int) -> Self:
        first, highest = self.first_temperature(d_ff), self.highest_temperature(d_ff)
        if self.learn_temperature and not 1 <= first <= highest:
            got = f"mask.temperature: got {first:g}; where d_ff = {d_ff} (before any growth)"
            raise ValueError(f"{got} a learned one lies between 1 and {highest:g}")
        return super().at_width(d_ff)


class StraightThroughMaskConfig(LearnableMaskConfig):
    """Straight-through: a step with the gradient of sigmoid((w - c) / T)."""

    module = "widthwise.model.ffn.width_mask_module:StraightThroughMask"
    is_exact = True
    kind: Literal["ste"] = "ste"


class SoftMaskConfig(LearnableMaskConfig):
    """sigmoid((w - c) / T) in training and evaluation."""

    evaluates_as_step = False
    kind: Literal["soft"] = "soft"


class AnnealedMaskConfig(TemperedMaskConfig):
    """sigmoid((w - c) / T) with a T that shrinks exponentially during training; a step in evaluation."""

    kind: Literal["anneal"] = "anneal"
    final_temperature: pydantic.PositiveFloat = 1.0
    """T at the end of training, in units."""

    def scheduled(self, first: float, progress: "Tensor") -> "Tensor | float":
        return first * (self.final_temperature / first) ** progress


class LinearRampMaskConfig(LearnableMaskConfig):
    """(w - c) / T + 1/2, clamped to 0 ... 1: it falls over T units and has a gradient only there."""

    module = "widthwise.model.ffn.width_mask_module:LinearRampMask"
    evaluates_as_step = False
    kind: Literal["linear_ramp"] = "linear_ramp"


class NestedMaskConfig(WidthMaskConfig):
    """A step at a random width in training, so that the first units learn to work without the others.

    The score gets no gradient from the loss then; train it afterwards with another mask. Sources: MatFormer,
    arXiv:2310.07707; nested dropout, Rippel et al. 2014.
    """

    module = "widthwise.model.ffn.width_mask_module:NestedMask"
    is_exact = False
    kind: Literal["nested"] = "nested"
    n_buckets: Count = Field(default=4, ge=2)
    """Number of widths to draw from, in equal steps from the narrowest to d_ff."""
    per: Literal["token", "batch"] = "token"
    """Draw a width for each token; otherwise all tokens of a forward pass share one; layers draw independently."""


class NoMaskConfig(WidthMaskConfig):
    """Every token uses every unit, and there is no score: a plain SwiGLU, unless a width is forced on it."""

    kind: Literal["none"] = "none"
    has_width: ClassVar[bool] = False


_Tempered = StraightThroughMaskConfig | SoftMaskConfig | AnnealedMaskConfig | LinearRampMaskConfig
_Masks = HardMaskConfig | _Tempered | NestedMaskConfig | NoMaskConfig
AnyWidthMask = Annotated[_Masks, Field(discriminator="kind")]
