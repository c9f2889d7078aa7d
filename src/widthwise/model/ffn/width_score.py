"""Scores: the number of a token that decides its width in a dynamic-width feed-forward."""

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

    n_kept: ClassVar[int] = 0
    """Numbers kept for the backward pass in fp32 besides x, from which the score is recomputed."""
    is_stream_mean: ClassVar[bool] = False
    """True if it is a mean over the coordinates of the stream, which changes when the stream becomes wider."""
    starts_at_zero: ClassVar[bool] = False
    """True if the score, and its gradient with respect to the features, is 0 for every token before training."""

    def cost(self, d_model: float) -> Cost:
        """Return the cost of the score, without what the feed-forward keeps anyway."""
        return Cost(activation_fp32_elements=self.n_kept)

    def build(self, d_model: int) -> "WidthScore":
        """Build the module, whose class has the name of this one without `Config`."""
        name = type(self).__name__.removesuffix("Config")
        return resolve_name(f"widthwise.model.ffn.width_score_module:{name}")(self, d_model)


class ConstScoreConfig(WidthScoreConfig):
    """Always 0, which leaves only the bias: a learned width of the layer, the same for all tokens."""

    starts_at_zero, n_kept = True, 1
    kind: Literal["const"] = "const"


class GainedScoreConfig(WidthScoreConfig, ABC):
    """A score with a gain, which decides how much the widths of tokens differ."""

    learn_gain: bool = True
    """Learn the gain, as exp(theta) with theta starting at 0; otherwise it is 1."""

    def cost(self, d_model: float) -> Cost:
        return super().cost(d_model) + vector(1 if self.learn_gain else 0)


class TokenScoreConfig(GainedScoreConfig):
    """A learned number for each vocabulary entry: the best that can be decided without the context."""

    starts_at_zero = True
    kind: Literal["token"] = "token"
    vocab_size: VocabSize
    """Must equal the model's."""

    def cost(self, d_model: float) -> Cost:
        return super().cost(d_model) + vector(self.vocab_size)


class RandomScoreConfig(GainedScoreConfig):
    """logit(u) with u ~ U(0, 1) for each token; with gain 1 and bias 0 the level is uniform.

    A control: the same budget and spread of widths, but no information in them. Random in evaluation as well.
    """

    n_kept = 1
    kind: Literal["random"] = "random"


class FeatureScoreConfig(GainedScoreConfig, ABC):
    """A score computed from a token's features."""

    detach: bool = False
    """Stop the gradient at the features, so that choosing widths does not shape them."""


class LayerNormMeanScoreConfig(FeatureScoreConfig):
    """mean(LayerNorm(x)), as the paper writes it.

    Degenerate: the mean is 0 until the norm's gains differ, and then stays within a few thousandths of the mean of its
    biases.
    """

    is_stream_mean = True
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
    kind: Literal["rms_mean"] = "rms_mean"


class RawMeanScoreConfig(FeatureScoreConfig):
    """The mean of the residual stream before the norm: the paper's score without its norm. Unbounded."""

    is_stream_mean, n_kept = True, 1
    kind: Literal["raw_mean"] = "raw_mean"


class LinearScoreConfig(FeatureScoreConfig):
    """v . x with a learned v that starts at 0, so that all tokens start at the same width."""

    starts_at_zero = True
    kind: Literal["linear"] = "linear"

    def cost(self, d_model: float) -> Cost:
        return super().cost(d_model) + linear(d_model, 1)


class MLPScoreConfig(FeatureScoreConfig):
    """v . silu(W x) with a v that starts at 0, so that all tokens start at the same width."""

    starts_at_zero = True
    kind: Literal["mlp"] = "mlp"
    d_hidden: Width = 16
    """Hidden width, in channels."""

    def cost(self, d_model: float) -> Cost:
        return super().cost(d_model) + linear(d_model, self.d_hidden) + linear(self.d_hidden, 1)


_OfFeatures = LayerNormMeanScoreConfig | RMSMeanScoreConfig | RawMeanScoreConfig | LinearScoreConfig | MLPScoreConfig
_Others = TokenScoreConfig | ConstScoreConfig | RandomScoreConfig
AnyWidthScore = Annotated[_OfFeatures | _Others, Field(discriminator="kind")]
