"""Scores: the number from which a token's width is decided.

Computed in fp32, or wider if the model is: in bf16 a width could not tell neighbouring units apart.
"""

import warnings
from abc import ABC, abstractmethod
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from widthwise.config_io import Config
from widthwise.model.axes import Control, Vector
from widthwise.model.context import PassContext
from widthwise.model.cost import Cost, linear, vector
from widthwise.sizes import VocabSize, Width

EPS = 1e-5
"""eps of the norms inside scores."""


def wide(x: Tensor) -> Tensor:
    """`x` in fp32, or unchanged if it is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class WidthScore(nn.Module, ABC):
    """forward(source) -> (B, T), called with autocast off. `source` returns what the score is computed from."""

    def source(self, x: Tensor, stream: Tensor, context: PassContext) -> Tensor:
        """The input of `forward`. x: (B, T, d_model), what the feed-forward reads; stream: the same before the norm."""
        return x

    @abstractmethod
    def forward(self, source: Tensor) -> Tensor: ...


class WidthScoreConfig(Config, ABC):
    """A kind of score and its options."""

    is_stream_mean: ClassVar[bool] = False
    """Whether it is a mean over the coordinates of the stream, which changes when the stream becomes wider."""
    starts_at_zero: ClassVar[bool] = False
    """Whether the score, and its gradient with respect to the features, is 0 for every token before training."""

    def cost(self, d_model: float) -> Cost:
        """Nothing is kept for the backward pass but x, from which the score is recomputed."""
        return Cost()

    @abstractmethod
    def build(self, d_model: int) -> WidthScore: ...


class ConstScoreConfig(WidthScoreConfig):
    """Always 0, which leaves only the bias: a learned width of the layer, the same for all tokens."""

    starts_at_zero = True
    kind: Literal["const"] = "const"

    def cost(self, d_model: float) -> Cost:
        """The zeros are kept for the backward pass."""
        return Cost(activation_fp32_elements=1)

    def build(self, d_model: int) -> "ConstScore":
        return ConstScore()


class ConstScore(WidthScore):
    def source(self, x: Tensor, stream: Tensor, context: PassContext) -> Tensor:
        return torch.zeros_like(wide(x[..., 0]))

    def forward(self, source: Tensor) -> Tensor:
        return source


class GainedScoreConfig(WidthScoreConfig, ABC):
    """A score with a gain, which decides how much the widths of tokens differ."""

    learn_gain: bool = True
    """Whether the gain is learned, as exp(theta) with theta starting at 0, or is fixed at 1."""

    def cost(self, d_model: float) -> Cost:
        return vector(1) if self.learn_gain else Cost()


class GainedScore(WidthScore, ABC):
    def __init__(self, config: GainedScoreConfig):
        super().__init__()
        self.log_gain = Vector({}, 0.0) if config.learn_gain else None

    @abstractmethod
    def before_gain(self, source: Tensor) -> Tensor:
        """The score before the gain, (B, T). source: as returned by `source`."""

    def forward(self, source: Tensor) -> Tensor:
        score = self.before_gain(source)
        return score if self.log_gain is None else wide(self.log_gain()).exp() * score


class TokenScoreConfig(GainedScoreConfig):
    """A learned number for each vocabulary entry: the best that can be decided without the context."""

    starts_at_zero = True
    kind: Literal["token"] = "token"
    vocab_size: VocabSize
    """Must equal the model's."""

    def cost(self, d_model: float) -> Cost:
        return super().cost(d_model) + vector(self.vocab_size)

    def build(self, d_model: int) -> "TokenScore":
        return TokenScore(self)


class TokenScore(GainedScore):
    def __init__(self, config: TokenScoreConfig):
        super().__init__(config)
        self.table = Vector({"vocab_size": config.vocab_size}, 0.0)

    def source(self, x: Tensor, stream: Tensor, context: PassContext) -> Tensor:
        return context.tokens

    def before_gain(self, source: Tensor) -> Tensor:
        return wide(functional.embedding(source, self.table()[:, None])[..., 0])


class RandomScoreConfig(GainedScoreConfig):
    """logit(u) with u ~ U(0, 1) for each token; with gain 1 and bias 0 the level is uniform.

    A control: the same budget and spread of widths, but no information in them. Random in evaluation as well.
    """

    kind: Literal["random"] = "random"

    def cost(self, d_model: float) -> Cost:
        """The draws are kept for the backward pass."""
        return super().cost(d_model) + Cost(activation_fp32_elements=1)

    def build(self, d_model: int) -> "RandomScore":
        return RandomScore(self)


class RandomScore(GainedScore):
    def source(self, x: Tensor, stream: Tensor, context: PassContext) -> Tensor:
        return torch.rand_like(wide(x[..., 0]))

    def before_gain(self, source: Tensor) -> Tensor:
        return source.clamp(min=2**-25).logit()  # a draw can be 0: -inf times a gradient of 0 is NaN


class FeatureScoreConfig(GainedScoreConfig, ABC):
    """A score computed from a token's features."""

    detach: bool = False
    """Whether the gradient stops at the features, so that choosing widths does not shape them."""


class FeatureScore(GainedScore, ABC):
    def __init__(self, config: FeatureScoreConfig):
        super().__init__(config)
        self.detach = config.detach

    def source(self, x: Tensor, stream: Tensor, context: PassContext) -> Tensor:
        return x.detach() if self.detach else x


class LayerNormMeanScoreConfig(FeatureScoreConfig):
    """mean(LayerNorm(x)), as the paper writes it.

    Degenerate: the mean is 0 until the norm's gains differ, and then stays within a few thousandths of the mean of its
    biases.
    """

    is_stream_mean = True
    kind: Literal["ln_mean"] = "ln_mean"

    def cost(self, d_model: float) -> Cost:
        return super().cost(d_model) + vector(2 * d_model)

    def build(self, d_model: int) -> "LayerNormMeanScore":
        """Warns that the score has no variance."""
        warnings.warn(
            "ffn.score ln_mean: score has no variance, because the mean of a LayerNorm's output is 0: every token gets "
            "the same width; with score linear the width depends on the token",
            stacklevel=2,
        )
        return LayerNormMeanScore(self, d_model)


class LayerNormMeanScore(FeatureScore):
    def __init__(self, config: LayerNormMeanScoreConfig, d_model: int):
        super().__init__(config)
        self.scale, self.shift = Vector({"d_model": d_model}, 1.0), Vector({"d_model": d_model}, 0.0)

    def before_gain(self, source: Tensor) -> Tensor:
        x = wide(source)
        return functional.layer_norm(x, x.shape[-1:], wide(self.scale()), wide(self.shift()), EPS).mean(dim=-1)


class RMSMeanScoreConfig(FeatureScoreConfig):
    """mean(x) / rms(x), between -1 and 1: the paper's score without the centring."""

    is_stream_mean = True
    kind: Literal["rms_mean"] = "rms_mean"

    def build(self, d_model: int) -> "RMSMeanScore":
        return RMSMeanScore(self)


class RMSMeanScore(FeatureScore):
    def before_gain(self, source: Tensor) -> Tensor:
        x = wide(source)
        return x.mean(dim=-1) * (x.square().mean(dim=-1) + EPS).rsqrt()


class RawMeanScoreConfig(FeatureScoreConfig):
    """The mean of the residual stream before the norm: the paper's score without its norm. Unbounded."""

    is_stream_mean = True
    kind: Literal["raw_mean"] = "raw_mean"

    def cost(self, d_model: float) -> Cost:
        """The means are kept for the backward pass."""
        return super().cost(d_model) + Cost(activation_fp32_elements=1)

    def build(self, d_model: int) -> "RawMeanScore":
        return RawMeanScore(self)


class RawMeanScore(FeatureScore):
    def source(self, x: Tensor, stream: Tensor, context: PassContext) -> Tensor:
        return super().source(wide(stream).mean(dim=-1), stream, context)

    def before_gain(self, source: Tensor) -> Tensor:
        return source


class LinearScoreConfig(FeatureScoreConfig):
    """v . x with a learned v that starts at 0, so that all tokens start at the same width."""

    starts_at_zero = True
    kind: Literal["linear"] = "linear"

    def cost(self, d_model: float) -> Cost:
        return super().cost(d_model) + linear(d_model, 1)

    def build(self, d_model: int) -> "LinearScore":
        return LinearScore(self, d_model)


class LinearScore(FeatureScore):
    def __init__(self, config: LinearScoreConfig, d_model: int):
        super().__init__(config)
        self.v = Control({"d_model": d_model}, {"score": 1}, start=0.0)

    def before_gain(self, source: Tensor) -> Tensor:
        return functional.linear(wide(source), wide(self.v.weight))[..., 0]


class MLPScoreConfig(FeatureScoreConfig):
    """v . silu(W x) with a v that starts at 0, so that all tokens start at the same width."""

    starts_at_zero = True
    kind: Literal["mlp"] = "mlp"
    d_hidden: Width = 16
    """Hidden width, in channels."""

    def cost(self, d_model: float) -> Cost:
        return super().cost(d_model) + linear(d_model, self.d_hidden) + linear(self.d_hidden, 1)

    def build(self, d_model: int) -> "MLPScore":
        return MLPScore(self, d_model)


class MLPScore(FeatureScore):
    def __init__(self, config: MLPScoreConfig, d_model: int):
        super().__init__(config)
        self.w_in = Control({"d_model": d_model}, {"d_hidden": config.d_hidden})
        self.v = Control({"d_hidden": config.d_hidden}, {"score": 1}, start=0.0)

    def before_gain(self, source: Tensor) -> Tensor:
        hidden = functional.silu(functional.linear(wide(source), wide(self.w_in.weight)))
        return functional.linear(hidden, wide(self.v.weight))[..., 0]


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
