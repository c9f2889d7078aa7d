"""The modules of the masks: how each falls from 1 to 0, and what it has as derivative."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from widthwise.kernels.sliced_swiglu import Edge
from widthwise.model.axes import Vector
from widthwise.model.ffn.width_mask import NestedMaskConfig, TemperedMaskConfig, WidthMaskConfig


def step(width: Tensor, centres: Tensor) -> Tensor:
    """1 for centres below the width, else 0; without a derivative."""
    room = width.new_empty(torch.broadcast_shapes(width.shape, centres.shape))
    return torch.gt(width.detach(), centres, out=room)  # a fifth of the time of a cast from bool


HARD = Edge(step, 0.0, 0.0)


class WidthMask(nn.Module):
    """The mask of a layer. It may differ between training and evaluation."""

    def __init__(self, config: WidthMaskConfig, d_ff: int):
        super().__init__()
        self.config = config
        self.temperature: Temperature | None = None

    def drawn(self, level: Tensor) -> Tensor:
        """The level (B, T) to use instead of the score's, from 0 (narrowest) to 1 (widest)."""
        return level

    def edge(self, progress: Tensor, dtype: torch.dtype) -> Edge:
        """The edge to use now. progress: how far training is, a scalar from 0 to 1; dtype: of the products."""
        return HARD


class Temperature(nn.Module):
    """T in units: as scheduled by the config, or first * exp(theta) clamped to 1 ... `highest_temperature`."""

    def __init__(self, config: TemperedMaskConfig, d_ff: int):
        super().__init__()
        self.config, self.first = config, config.first_temperature(d_ff)
        self.theta = Vector({}, 0.0) if config.is_learned else None
        self.highest = config.highest_temperature(d_ff) if config.is_learned else self.first

    def forward(self, progress: Tensor) -> Tensor | float:
        """T in units. progress: how far training is, a scalar from 0 to 1."""
        if self.theta is None:
            return self.config.scheduled(self.first, progress)
        return (self.first * self.theta().exp()).clamp(1.0, self.highest)


class TemperedMask(WidthMask):
    """sigmoid((w - c) / T)."""

    def __init__(self, config: TemperedMaskConfig, d_ff: int):
        super().__init__(config, d_ff)
        self.temperature = Temperature(config, d_ff)
        self.evaluates_as_step = config.evaluates_as_step

    def edge(self, progress: Tensor, dtype: torch.dtype) -> Edge:
        if self.evaluates_as_step and not self.training:
            return HARD
        assert self.temperature is not None
        return self.falling(self.temperature(progress), self.temperature.highest, dtype)

    def falling(self, temperature: Tensor | float, highest: float, dtype: torch.dtype) -> Edge:
        """The edge at a temperature in units, which never exceeds `highest`, for products in that dtype."""
        return Edge(lambda width, centres: torch.sigmoid((width - centres) / temperature), torch.inf, torch.inf)


class StraightThroughMask(TemperedMask):
    """A step with the gradient of sigmoid((w - c) / T).

    The derivative counts up to where, in w, all that lies further out adds up to one rounding of the products' dtype:
    2 sigmoid(-z) = eps for z = (w - c) / T, which is 5.5 in bf16, 16.6 in fp32. In T it loses more, a few roundings.
    """

    def falling(self, temperature: Tensor | float, highest: float, dtype: torch.dtype) -> Edge:
        given = temperature if isinstance(temperature, Tensor) else torch.tensor(temperature, dtype=torch.float64)

        def mask(width: Tensor, centres: Tensor) -> Tensor:
            return StraightThrough.apply(width, centres, given)

        return Edge(mask, highest * math.log(2 / torch.finfo(dtype).eps), 0.0)


class StraightThrough(torch.autograd.Function):
    """`step` of a width, with the derivative of sigmoid((width - centres) / temperature).

    Only the backward pass computes it.
    """

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


class LinearRampMask(TemperedMask):
    """(w - c) / T + 1/2, clamped to 0 ... 1."""

    def falling(self, temperature: Tensor | float, highest: float, dtype: torch.dtype) -> Edge:
        return Edge(
            lambda width, centres: ((width - centres) / temperature + 0.5).clamp(0, 1), highest / 2, highest / 2
        )


class NestedMask(WidthMask):
    """A step at the score's width in evaluation, and at a random one in training."""

    config: NestedMaskConfig

    def drawn(self, level: Tensor) -> Tensor:
        if not self.training:
            return level
        config = self.config
        shape = level.shape if config.per == "token" else (1, 1)
        bucket = torch.randint(config.n_buckets, shape, device=level.device)
        return (bucket.to(level.dtype) / (config.n_buckets - 1)).expand_as(level)
