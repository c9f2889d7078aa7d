"""The modules of scores, which decide the width of a token, and of masks, which fall from 1 to 0 at that width.

Scores are computed in fp32, or wider if the model is: neighbouring units are equal in bf16.
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
from widthwise.model.ffn.width_choice import (
    FeatureScoreConfig,
    GainedScoreConfig,
    MLPScoreConfig,
    TemperedMaskConfig,
    WidthMaskConfig,
    WidthScoreConfig,
)

EPS = 1e-5
"""eps of the norms inside scores."""


class WidthScore(nn.Module):
    """A score. `source` returns the input of `forward`, which returns (B, T) and is called with autocast off."""

    def __init__(self, config: WidthScoreConfig, d_model: int):
        super().__init__()
        self.detach = isinstance(config, FeatureScoreConfig) and config.detach
        self.log_gain = Vector({}, 0.0) if isinstance(config, GainedScoreConfig) and config.learn_gain else None

    def source(self, x: Tensor, stream: Tensor) -> Tensor:
        """Return the input of `forward`. x: (B, T, d_model), input of the feed-forward; stream: x before the norm."""
        return x.detach() if self.detach else x

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
        return source.clamp(min=2**-25).logit()  # a draw can be 0: -inf times a gradient of 0 is NaN


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
        return super().source(widened(stream).mean(dim=-1), stream)


class LinearScore(WidthScore):
    def __init__(self, config: WidthScoreConfig, d_model: int):
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


SCORES: dict[str, Callable[[Any, int], WidthScore]] = {
    "const": ConstScore,
    "random": RandomScore,
    "ln_mean": LayerNormMeanScore,
    "raw_mean": RawMeanScore,
    "linear": LinearScore,
    "mlp": MLPScore,
}
"""Kind -> its module, built from its config and d_model."""


def step(width: Tensor, centres: Tensor) -> Tensor:
    """Return 1 for centres below the width, otherwise 0, without a derivative."""
    mask = width.new_empty(torch.broadcast_shapes(width.shape, centres.shape))
    return torch.gt(width.detach(), centres, out=mask)  # a fifth of the time of a cast from bool


HARD = Edge(step, 0.0)


class WidthMask(nn.Module):
    """The mask of a layer: a step in training and evaluation, unless a subclass has another form."""

    def __init__(self, config: WidthMaskConfig, d_ff: int):
        super().__init__()
        self.temperature: Temperature | None = None

    def edge(self, dtype: torch.dtype) -> Edge:
        """Return the edge for the present mode. dtype: of the matrix products."""
        return HARD


class Temperature(nn.Module):
    """T in units: the value of the config, or first * exp(theta) clamped to 1 ... `highest_temperature`."""

    def __init__(self, config: TemperedMaskConfig, d_ff: int):
        super().__init__()
        first = config.at_width(d_ff).temperature
        assert first is not None
        self.first = first
        self.theta = Vector({}, 0.0) if config.learn_temperature else None
        self.highest = config.highest_temperature(d_ff) if config.learn_temperature else first

    def forward(self) -> Tensor | float:
        if self.theta is None:
            return self.first
        return (self.first * self.theta().exp()).clamp(1.0, self.highest)


class SoftMask(WidthMask):
    """sigmoid((w - c) / T)."""

    def __init__(self, config: TemperedMaskConfig, d_ff: int):
        super().__init__(config, d_ff)
        self.temperature = Temperature(config, d_ff)

    def edge(self, dtype: torch.dtype) -> Edge:
        assert self.temperature is not None
        temperature = self.temperature()
        return Edge(lambda width, centres: torch.sigmoid((width - centres) / temperature), torch.inf)


class StraightThroughMask(SoftMask):
    """A step with the gradient of sigmoid((w - c) / T).

    The derivative in w is cut off where the remaining tail sums to one rounding of the products' dtype: 2 sigmoid(-z) =
    eps for z = (w - c) / T, which is 5.5 in bf16 and 16.6 in fp32. The derivative in T loses a few roundings.
    """

    def edge(self, dtype: torch.dtype) -> Edge:
        if not self.training:
            return HARD
        assert self.temperature is not None
        temperature = self.temperature()
        if not isinstance(temperature, Tensor):
            temperature = torch.tensor(temperature, dtype=torch.float64)

        def mask(width: Tensor, centres: Tensor) -> Tensor:
            return StraightThrough.apply(width, centres, temperature)

        return Edge(mask, self.temperature.highest * math.log(2 / torch.finfo(dtype).eps))


class StraightThrough(torch.autograd.Function):
    """`step` with the derivative of sigmoid((width - centres) / temperature), computed only in the backward pass."""

    @staticmethod
    def forward(ctx: Any, width: Tensor, centres: Tensor, temperature: Tensor) -> Tensor:
        ctx.save_for_backward(width, centres, temperature)
        return step(width, centres)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor | None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        width, centres, temperature = ctx.saved_tensors
        argument = (width - centres).div_(temperature)
        sigmoid = torch.sigmoid(argument)
        by_argument = grad * torch.addcmul(sigmoid, sigmoid, sigmoid, value=-1)
        by_temperature = None
        if ctx.needs_input_grad[2]:
            by_temperature = -((by_argument * argument).sum() / temperature).view_as(temperature)
        return by_argument.sum_to_size(width.shape) / temperature, None, by_temperature


MASKS: dict[str, Callable[[Any, int], WidthMask]] = {
    "hard": WidthMask,
    "none": WidthMask,
    "soft": SoftMask,
    "ste": StraightThroughMask,
}
"""Kind -> its module, built from its config and the d_ff before any growth."""
