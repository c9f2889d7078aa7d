"""The modules of the scores.

Computed in fp32, or wider if the model is: in bf16 a width could not tell neighbouring units apart.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

from widthwise.model.axes import Control, Vector
from widthwise.model.context import PassContext
from widthwise.model.ffn.width_score import (
    FeatureScoreConfig,
    GainedScoreConfig,
    LayerNormMeanScoreConfig,
    LinearScoreConfig,
    MLPScoreConfig,
    TokenScoreConfig,
    WidthScoreConfig,
)

EPS = 1e-5
"""eps of the norms inside scores."""


def wide(x: Tensor) -> Tensor:
    """`x` in fp32, or unchanged if it is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class WidthScore(nn.Module, ABC):
    """forward(source) -> (B, T), called with autocast off. `source` returns what the score is computed from."""

    def __init__(self, config: WidthScoreConfig, d_model: int):
        super().__init__()

    def source(self, x: Tensor, stream: Tensor, context: PassContext) -> Tensor:
        """The input of `forward`. x: (B, T, d_model), what the feed-forward reads; stream: the same before the norm."""
        return x

    @abstractmethod
    def forward(self, source: Tensor) -> Tensor: ...


class ConstScore(WidthScore):
    def source(self, x: Tensor, stream: Tensor, context: PassContext) -> Tensor:
        return torch.zeros_like(wide(x[..., 0]))

    def forward(self, source: Tensor) -> Tensor:
        return source


class GainedScore(WidthScore, ABC):
    def __init__(self, config: GainedScoreConfig, d_model: int):
        super().__init__(config, d_model)
        self.log_gain = Vector({}, 0.0) if config.learn_gain else None

    @abstractmethod
    def before_gain(self, source: Tensor) -> Tensor:
        """The score before the gain, (B, T). source: as returned by `source`."""

    def forward(self, source: Tensor) -> Tensor:
        score = self.before_gain(source)
        return score if self.log_gain is None else wide(self.log_gain()).exp() * score


class TokenScore(GainedScore):
    def __init__(self, config: TokenScoreConfig, d_model: int):
        super().__init__(config, d_model)
        self.table = Vector({"vocab_size": config.vocab_size}, 0.0)

    def source(self, x: Tensor, stream: Tensor, context: PassContext) -> Tensor:
        return context.tokens

    def before_gain(self, source: Tensor) -> Tensor:
        return wide(functional.embedding(source, self.table()[:, None])[..., 0])


class RandomScore(GainedScore):
    def source(self, x: Tensor, stream: Tensor, context: PassContext) -> Tensor:
        return torch.rand_like(wide(x[..., 0]))

    def before_gain(self, source: Tensor) -> Tensor:
        return source.clamp(min=2**-25).logit()  # a draw can be 0: -inf times a gradient of 0 is NaN


class FeatureScore(GainedScore, ABC):
    def __init__(self, config: FeatureScoreConfig, d_model: int):
        super().__init__(config, d_model)
        self.detach = config.detach

    def source(self, x: Tensor, stream: Tensor, context: PassContext) -> Tensor:
        return x.detach() if self.detach else x


class LayerNormMeanScore(FeatureScore):
    def __init__(self, config: LayerNormMeanScoreConfig, d_model: int):
        super().__init__(config, d_model)
        self.scale, self.shift = Vector({"d_model": d_model}, 1.0), Vector({"d_model": d_model}, 0.0)

    def before_gain(self, source: Tensor) -> Tensor:
        x = wide(source)
        return functional.layer_norm(x, x.shape[-1:], wide(self.scale()), wide(self.shift()), EPS).mean(dim=-1)


class RMSMeanScore(FeatureScore):
    def before_gain(self, source: Tensor) -> Tensor:
        x = wide(source)
        return x.mean(dim=-1) * (x.square().mean(dim=-1) + EPS).rsqrt()


class RawMeanScore(FeatureScore):
    def source(self, x: Tensor, stream: Tensor, context: PassContext) -> Tensor:
        return super().source(wide(stream).mean(dim=-1), stream, context)

    def before_gain(self, source: Tensor) -> Tensor:
        return source


class LinearScore(FeatureScore):
    def __init__(self, config: LinearScoreConfig, d_model: int):
        super().__init__(config, d_model)
        self.v = Control({"d_model": d_model}, {"score": 1}, start=0.0)

    def before_gain(self, source: Tensor) -> Tensor:
        return functional.linear(wide(source), wide(self.v.weight))[..., 0]


class MLPScore(FeatureScore):
    def __init__(self, config: MLPScoreConfig, d_model: int):
        super().__init__(config, d_model)
        self.w_in = Control({"d_model": d_model}, {"d_hidden": config.d_hidden})
        self.v = Control({"d_hidden": config.d_hidden}, {"score": 1}, start=0.0)

    def before_gain(self, source: Tensor) -> Tensor:
        hidden = functional.silu(functional.linear(wide(source), wide(self.w_in.weight)))
        return functional.linear(hidden, wide(self.v.weight))[..., 0]
