"""The width of a token in a dynamic-width feed-forward: a score, and a mask over the units below the width.

A layer has d_ff units; the centre of unit i is c_i = i + 1/2. A token of width w, in units, uses the units whose
centres are below w. The derivative of such a step with respect to w is 0. The masks differ in how they fall from 1 to
0, and in their derivative.

In a grown layer new units have centres between the old ones, and old centres and temperatures do not change.
`d_ff` in this file is therefore the value before any growth.
"""

from abc import ABC
from typing import Annotated, ClassVar, Literal, Self

import pydantic
from pydantic import Field

from widthwise.model.cost import Cost, linear, vector
from widthwise.model.kinds import ConfigOfKind


class WidthScoreConfig(ConfigOfKind, ABC):
    """A score: one number per token that decides its width."""

    n_kept: ClassVar[int] = 0
    """fp32 numbers per token kept for the backward pass, in addition to the input of the feed-forward."""
    is_stream_mean: ClassVar[bool] = False
    """True for a mean over the coordinates of the stream, which changes when the stream becomes wider."""
    starts_at_zero: ClassVar[bool] = False
    """True if the score and its gradient with respect to the features are 0 for every token before training."""

    def cost(self, d_model: float) -> Cost:
        """Return the cost of the score, without the activations that the feed-forward keeps anyway."""
        return Cost(activation_fp32_elements=self.n_kept)


class ConstScoreConfig(WidthScoreConfig):
    """A score of 0 for every token, so that the bias alone gives a learned width of the layer."""

    starts_at_zero = True
    n_kept = 1
    kind: Literal["const"] = "const"


class GainedScoreConfig(WidthScoreConfig, ABC):
    """A score with a gain, which decides how much widths differ among tokens."""

    learn_gain: bool = True
    """Learn the gain, as exp(theta) with theta starting at 0; otherwise it is 1."""

    def cost(self, d_model: float) -> Cost:
        return super().cost(d_model) + vector(1 if self.learn_gain else 0)


class RandomScoreConfig(GainedScoreConfig):
    """logit(u) with u ~ U(0, 1) for each token; with gain 1 and bias 0 the level is uniform.

    A control with the same budget and spread of widths, but without information. Random in evaluation as well.
    """

    n_kept = 1
    kind: Literal["random"] = "random"


class LayerNormMeanScoreConfig(GainedScoreConfig):
    """mean(LayerNorm(x)), as in the paper.

    It is degenerate: the mean is 0 until the norm's gains differ, and then stays within a few thousandths of the mean
    of its biases.
    """

    is_stream_mean = True
    kind: Literal["ln_mean"] = "ln_mean"

    def cost(self, d_model: float) -> Cost:
        return super().cost(d_model) + vector(2 * d_model)


class RawMeanScoreConfig(GainedScoreConfig):
    """The mean of the residual stream before the norm: the paper's score without its norm. It has no bound."""

    is_stream_mean = True
    n_kept = 1
    kind: Literal["raw_mean"] = "raw_mean"


class LinearScoreConfig(GainedScoreConfig):
    """v . x with a learned v that starts at 0, so that all tokens start at the same width."""

    starts_at_zero = True
    kind: Literal["linear"] = "linear"

    def cost(self, d_model: float) -> Cost:
        return super().cost(d_model) + linear(d_model, 1)


AnyWidthScore = Annotated[
    LinearScoreConfig | LayerNormMeanScoreConfig | RawMeanScoreConfig | ConstScoreConfig | RandomScoreConfig,
    Field(discriminator="kind"),
]


class WidthMaskConfig(ConfigOfKind):
    """A kind of mask and its options; a step unless a subclass has another form."""

    has_width: ClassVar[bool] = True
    """True if tokens choose widths."""
    is_exact: ClassVar[bool] = True
    """True if the mask is exactly 1 for every unit below the token's width, in training as well."""

    def at_width(self, d_ff: int) -> Self:
        """Return the config with the values for d_ff written out."""
        return self


class HardMaskConfig(WidthMaskConfig):
    """A step, as in the paper. It passes no gradient to the score."""

    kind: Literal["hard"] = "hard"


class TemperedMaskConfig(WidthMaskConfig, ABC):
    """A mask with the derivative of sigmoid((w - c) / T)."""

    temperature: pydantic.PositiveFloat | None = None
    """T, in units: a sigmoid falls from 0.9 to 0.1 within 4.4 T. null: d_ff / 32, but at least 1."""

    def at_width(self, d_ff: int) -> Self:
        return self.model_copy(update={"temperature": self.temperature or max(1.0, d_ff / 32)})


class SoftMaskConfig(TemperedMaskConfig):
    """sigmoid((w - c) / T) in training and evaluation."""

    is_exact = False
    kind: Literal["soft"] = "soft"


class StraightThroughMaskConfig(TemperedMaskConfig):
    """Straight-through estimator: a step with the gradient of sigmoid((w - c) / T)."""

    kind: Literal["ste"] = "ste"


class NoMaskConfig(WidthMaskConfig):
    """No mask and no score: every token uses every unit, as in a SwiGLU, unless a width is forced."""

    kind: Literal["none"] = "none"
    has_width = False


AnyWidthMask = Annotated[
    HardMaskConfig | StraightThroughMaskConfig | SoftMaskConfig | NoMaskConfig, Field(discriminator="kind")
]
