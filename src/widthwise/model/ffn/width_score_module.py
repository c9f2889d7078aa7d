"""The modules of the scores, from which a dynamic-width feed-forward takes the width of a token.

They are computed in fp32, or wider if the model is: in bf16 a width could not tell neighbouring units apart.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from widthwise.kernels.dispatch import widened
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


class WidthScore(nn.Module):
    """forward(source) -> (B, T), called with autocast off. `source` returns what the score is computed from."""

    def __init__(self, config: WidthScoreConfig, d_model: int):
        super().__init__()
        self.detach = isinstance(config, FeatureScoreConfig) and config.detach
        self.log_gain = Vector({}, 0.0) if isinstance(config, GainedScoreConfig) and config.learn_gain else None

    def source(self, x: Tensor, stream: Tensor, context: PassContext) -> Tensor:
        """The input of `forward`. x: (B, T, d_model), what the feed-forward reads; stream: the same before the norm."""
        return x.detach() if self.detach else x

    def before_gain(self, source: Tensor) -> Tensor:
        """The score before the gain, (B, T). source: as returned by `source`."""
        return source

    def forward(self, source: Tensor) -> Tensor:
        score = self.before_gain(source)
        return score if self.log_gain is None else widened(self.log_gain()).exp() * score


class ConstScore(WidthScore):
    def source(self, x: Tensor, stream: Tensor, context: PassContext) -> Tensor:
        return torch.zeros_like(widened(x[..., 0]))


class TokenScore(WidthScore):
    def __init__(self, config: TokenScoreConfig, d_model: int):
        super().__init__(config, d_model)
        self.table = Vector({"vocab_size": config.vocab_size}, 0.0)

    def source(self, x: Tensor, stream: Tensor, context: PassContext) -> Tensor:
        return context.tokens

    def before_gain(self, source: Tensor) -> Tensor:
        return widened(functional.embedding(source, self.table()[:, None])[..., 0])


class RandomScore(WidthScore):
    def source(self, x: Tensor, stream: Tensor, context: PassContext) -> Tensor:
        return torch.rand_like(widened(x[..., 0]))

    def before_gain(self, source: Tensor) -> Tensor:
        return source.clamp(min=2**-25).logit()  # a draw can be 0: -inf times a gradient of 0 is NaN


class LayerNormMeanScore(WidthScore):
    def __init__(self, config: LayerNormMeanScoreConfig, d_model: int):
        super().__init__(config, d_model)
        self.scale, self.shift = Vector({"d_model": d_model}, 1.0), Vector({"d_model": d_model}, 0.0)

    def before_gain(self, source: Tensor) -> Tensor:
        x = widened(source)
        return functional.layer_norm(x, x.shape[-1:], widened(self.scale()), widened(self.shift()), EPS).mean(dim=-1)


class RMSMeanScore(WidthScore):
    def before_gain(self, source: Tensor) -> Tensor:
        x = widened(source)
        return x.mean(dim=-1) * (x.square().mean(dim=-1) + EPS).rsqrt()


class RawMeanScore(WidthScore):
    def source(self, x: Tensor, stream: Tensor, context: PassContext) -> Tensor:
        return super().source(widened(stream).mean(dim=-1), stream, context)


class LinearScore(WidthScore):
    def __init__(self, config: LinearScoreConfig, d_model: int):
        super().__init__(config, d_model)
        self.v = Control({"d_model": d_model}, {"score": 1}, start=0.0)

    def before_gain(self, source: Tensor) -> Tensor:
        return functional.linear(widened(source), widened(self.v.weight))[..., 0]


class MLPScore(WidthScore):
    def __init__(self, config: MLPScoreConfig, d_model: int):
        super().__init__(config, d_model)
        self.w_in = Control({"d_model": d_model}, {"d_hidden": config.d_hidden})
        self.v = Control({"d_hidden": config.d_hidden}, {"score": 1}, start=0.0)

    def before_gain(self, source: Tensor) -> Tensor:
        hidden = functional.silu(functional.linear(widened(source), widened(self.w_in.weight)))
        return functional.linear(hidden, widened(self.v.weight))[..., 0]
