"""The modules of scores, which decide the width of a token, and the edges of masks, which fall from 1 to 0 at that
width.

Scores are computed in fp32, or wider if the model is, because bf16 cannot represent neighbouring units.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from widthwise.kernels.dispatch import widened
from widthwise.kernels.sliced_swiglu import Edge
from widthwise.model.axes import Control, Vector
from widthwise.model.ffn.width_choice import GainedScoreConfig, StraightThroughMaskConfig, WidthScoreConfig

EPS = 1e-5
"""eps of the norms inside scores."""


class WidthScore(nn.Module):
    """A score: `source` returns the input of `forward`, and `forward` returns the score, (B, T).

    `forward` is called with autocast off, and its input is kept for the backward pass, which recomputes the rest.
    """

    def __init__(self, config: WidthScoreConfig, d_model: int):
        super().__init__()
        self.log_gain = Vector({}, 0.0) if isinstance(config, GainedScoreConfig) and config.learn_gain else None

    def source(self, x: Tensor, stream: Tensor) -> Tensor:
        """Return the input of `forward`. x: (B, T, d_model), input of the feed-forward; stream: x before the norm."""
        return x

    def before_gain(self, source: Tensor) -> Tensor:
        """Return the score before the gain, (B, T). source: as returned by `source`."""
        return source

    def forward(self, source: Tensor) -> Tensor:
        score = self.before_gain(source)
        return score if self.log_gain is None else widened(self.log_gain()).exp() * score


class ConstScore(WidthScore):
    def source(self, x: Tensor, stream: Tensor) -> Tensor:
        return torch.zeros_like(widened(x[..., 0]))


class RandomScore(WidthScore):
    def source(self, x: Tensor, stream: Tensor) -> Tensor:
        return torch.rand_like(widened(x[..., 0]))

    def before_gain(self, source: Tensor) -> Tensor:
        return source.clamp(min=2**-25).logit()  # logit(0) is -inf, and -inf times a gradient of 0 is NaN


class LayerNormMeanScore(WidthScore):
    def __init__(self, config: WidthScoreConfig, d_model: int):
        super().__init__(config, d_model)
        warnings.warn(
            "ffn.score ln_mean: score has no variance, because the mean of a LayerNorm's output is 0: every token gets "
            "the same width; with score linear the width depends on the token",
            stacklevel=3,
        )
        self.scale = Vector({"d_model": d_model}, 1.0)
        self.shift = Vector({"d_model": d_model}, 0.0)

    def before_gain(self, source: Tensor) -> Tensor:
        x = widened(source)
        return functional.layer_norm(x, x.shape[-1:], widened(self.scale()), widened(self.shift()), EPS).mean(dim=-1)


class RawMeanScore(WidthScore):
    def source(self, x: Tensor, stream: Tensor) -> Tensor:
        return widened(stream).mean(dim=-1)


class LinearScore(WidthScore):
    def __init__(self, config: WidthScoreConfig, d_model: int):
        super().__init__(config, d_model)
        self.v = Control({"d_model": d_model}, {"score": 1}, start=0.0)

    def before_gain(self, source: Tensor) -> Tensor:
        return functional.linear(widened(source), widened(self.v.weight))[..., 0]


SCORES: dict[str, type[WidthScore]] = {
    "const": ConstScore,
    "random": RandomScore,
    "ln_mean": LayerNormMeanScore,
    "raw_mean": RawMeanScore,
    "linear": LinearScore,
}
"""Kind of score -> its module."""


def step(width: Tensor, centres: Tensor) -> Tensor:
    """Return 1 where the centre is below the width, otherwise 0, without a derivative. The shapes are broadcast."""
    mask = width.new_empty(torch.broadcast_shapes(width.shape, centres.shape))
    return torch.gt(width.detach(), centres, out=mask)  # a fifth of the time of a cast from bool


HARD = Edge(step, 0.0)


def straight_through_edge(mask: StraightThroughMaskConfig, dtype: torch.dtype, is_training: bool) -> Edge:
    """Return a step, in training with the gradient of sigmoid((w - c) / T).

    The gradient is cut off where its tail sums to one rounding of `dtype`, the dtype of the matrix products: at
    z = (w - c) / T with 2 sigmoid(-z) = eps, which is 5.5 in bf16 and 16.6 in fp32.
    """
    temperature = mask.temperature
    if not is_training or temperature is None:
        return HARD
    margin = temperature * math.log(2 / torch.finfo(dtype).eps)
    return Edge(lambda width, centres: StraightThrough.apply(width, centres, temperature), margin)


class StraightThrough(torch.autograd.Function):
    """`step` with the derivative of sigmoid((width - centres) / temperature), computed only in the backward pass."""

    @staticmethod
    def forward(ctx: Any, width: Tensor, centres: Tensor, temperature: float) -> Tensor:
        ctx.save_for_backward(width, centres)
        ctx.temperature = temperature
        return step(width, centres)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        width, centres = ctx.saved_tensors
        sigmoid = torch.sigmoid((width - centres).div_(ctx.temperature))
        by_argument = grad * torch.addcmul(sigmoid, sigmoid, sigmoid, value=-1)
        return by_argument.sum_to_size(width.shape) / ctx.temperature, None, None


EDGES: dict[str, Callable[[Any, torch.dtype, bool], Edge]] = {
    "hard": lambda mask, dtype, is_training: HARD,
    "none": lambda mask, dtype, is_training: HARD,
    "soft": lambda mask, dtype, is_training: Edge(
        lambda width, centres: torch.sigmoid((width - centres) / mask.temperature), torch.inf
    ),
    "ste": straight_through_edge,
}
"""Kind of mask -> function of its config, the dtype of the matrix products, and whether the model is in training."""
