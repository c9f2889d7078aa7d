"""Scores: the number from which a token's width is decided."""

import warnings
from abc import ABC
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from widthwise.config_io import Config
from widthwise.model.cost import Cost, linear, vector
from widthwise.sizes import VocabSize, Width

if TYPE_CHECKING:
    from widthwise.model.ffn.width_score_module import WidthScore


class WidthScoreConfig(Config, ABC):
    """A kind of score and its options."""

    module: ClassVar[str]
    """The class of the module; see `FFNConfig.module`."""
    is_stream_mean: ClassVar[bool] = False
    """Whether it is a mean over the coordinates of the stream, which changes when the stream becomes wider."""
    starts_at_zero: ClassVar[bool] = False
    """Whether the score, and its gradient with respect to the features, is 0 for every token before training."""

    def cost(self, d_model: float) -> Cost:
        """Nothing is kept for the backward pass but x, from which the score is recomputed."""
        return Cost()

    def build(self, d_model: int) -> "WidthScore":
        return resolve_name(self.module)(self, d_model)


class ConstScoreConfig(WidthScoreConfig):
    """Always 0, which leaves only the bias: a learned width of the layer, the same for all tokens."""

    starts_at_zero = True
    module = "widthwise.model.ffn.width_score_module:ConstScore"
    kind: Literal["const"] = "const"

    def cost(self, d_model: float) -> Cost:
        """The zeros are kept for the backward pass."""
        return Cost(activation_fp32_elements=1)


class GainedScoreConfig(WidthScoreConfig, ABC):
    """A score with a gain, which decides how much the widths of tokens differ."""

    learn_gain: bool = True
    """Whether the gain is learned, as exp(theta) with theta starting at 0, or is fixed at 1."""

    def cost(self, d_model: float) -> Cost:
        return vector(1) if self.learn_gain else Cost()


class TokenScoreConfig(GainedScoreConfig):
    """A learned number for each vocabulary entry: the best that can be decided without the context."""

    starts_at_zero = True
    module = "widthwise.model.ffn.width_score_module:TokenScore"
    kind: Literal["token"] = "token"
    vocab_size: VocabSize
    """Must equal the model's."""

    def cost(self, d_model: float) -> Cost:
        return super().cost(d_model) + vector(self.vocab_size)


class RandomScoreConfig(GainedScoreConfig):
    """logit(u) with u ~ U(0, 1) for each token; with gain 1 and bias 0 the level is uniform.

    A control: the same budget and spread of widths, but no information in them. Random in evaluation as well.
    """

    module = "widthwise.model.ffn.width_score_module:RandomScore"
    kind: Literal["random"] = "random"

    def cost(self, d_model: float) -> Cost:
        """The draws are kept for the backward pass."""
        return super().cost(d_model) + Cost(activation_fp32_elements=1)


class FeatureScoreConfig(GainedScoreConfig, ABC):
    """A score computed from a token's features."""

    detach: bool = False
    """Whether the gradient stops at the features, so that choosing widths does not shape them."""


class LayerNormMeanScoreConfig(FeatureScoreConfig):
    """mean(LayerNorm(x)), as the paper writes it.

    Degenerate: the mean is 0 until the norm's gains differ, and then stays within a few thousandths of the mean of its
    biases.
    """

    is_stream_mean = True
    module = "widthwise.model.ffn.width_score_module:LayerNormMeanScore"
    kind: Literal["ln_mean"] = "ln_mean"

    def cost(self, d_model: float) -> Cost:
        return super().cost(d_model) + vector(2 * d_model)

    def build(self, d_model: int) -> "WidthScore":
        """Build the module, with a warning that the score has no variance."""
        warnings.warn(
            "ffn.score ln_mean: score has no variance, because the mean of a LayerNorm's output is 0: every token gets "
            "the same width; with score linear the width depends on the token",
            stacklevel=2,
        )
        return super().build(d_model)


class RMSMeanScoreConfig(FeatureScoreConfig):
    """mean(x) / rms(x), between -1 and 1: the paper's score without the centring."""

    is_stream_mean = True
    module = "widthwise.model.ffn.width_score_module:RMSMeanScore"
    kind: Literal["rms_mean"] = "rms_mean"


class RawMeanScoreConfig(FeatureScoreConfig):
    """The mean of the residual stream before the norm: the paper's score without its norm. Unbounded."""

    is_stream_mean = True
    module = "widthwise.model.ffn.width_score_module:RawMeanScore"
    kind: Literal["raw_mean"] = "raw_mean"

    def cost(self, d_model: float) -> Cost:
        """The means are kept for the backward pass."""
        return super().cost(d_model) + Cost(activation_fp32_elements=1)


class LinearScoreConfig(FeatureScoreConfig):
    """v . x with a learned v that starts at 0, so that all tokens start at the same width."""

    starts_at_zero = True
    module = "widthwise.model.ffn.width_score_module:LinearScore"
    kind: Literal["linear"] = "linear"

    def cost(self, d_model: float) -> Cost:
        return super().cost(d_model) + linear(d_model, 1)


class MLPScoreConfig(FeatureScoreConfig):
    """v . silu(W x) with a v that starts at 0, so that all tokens start at the same width."""

    starts_at_zero = True
    module = "widthwise.model.ffn.width_score_module:MLPScore"
    kind: Literal["mlp"] = "mlp"
    d_hidden: Width = 16
    """Hidden width, in channels."""

    def cost(self, d_model: float) -> Cost:
        return super().cost(d_model) + linear(d_model, self.d_hidden) + linear(self.d_hidden, 1)


AnyWidthScore = Annotated[
    LayerNormMeanScoreConfig
    | RMSMeanScoreConfig
    | RawMeanScoreConfig
    | LinearScoreConfig
    | MLPScoreConfig
    | TokenScoreConfig
    | ConstScoreConfig
    | RandomScoreConfig,
    Field(discriminator="kind"),
]
