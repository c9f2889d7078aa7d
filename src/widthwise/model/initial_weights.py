"""Initial weights from the names of the axes.

The recipe of the variable-width paper (section 4 of its release): embedding and head normal(std); a matrix that reads
the stream normal(std / sqrt(width_multiplier) * sqrt(d_model / w)) in a layer of width w; a matrix that writes the
stream the same, divided by the root of the number of updates, which is 2 * n_layers if every layer has one attention
and one feed-forward; gains 1. With width_multiplier = d_model / base width this is muP for Adam; the paper keeps it
constant.
"""

import math

import torch
from torch import Tensor, nn

from widthwise.model.axes import Linear, Weight
from widthwise.model.config import InitConfig


def initial_std(config: InitConfig, module: nn.Module, width_ratio: float, n_additions: int) -> float:
    """Return the standard deviation of a module's initial weight: `config.std`, scaled by width and depth if the module
    is a matrix.

    width_ratio: d_model of the model over the width of the module's layer; n_additions: number of updates of the
    stream in the model.
    """
    if not isinstance(module, Linear):
        return config.std
    std = config.std / math.sqrt(config.width_multiplier) * math.sqrt(width_ratio)
    return std / math.sqrt(n_additions) if module.writes_stream and config.depth_scaled else std


def initial_weight(module: Weight, std: float, generator: torch.Generator, truncate_at: float | None) -> Tensor:
    """Return the whole initial weight of one module, in fp32: its `start`, or by default normal(std).

    truncate_at: standard deviations at which the normal distribution is truncated; None: not truncated.
    """
    # Drawn on the CPU in fp32 for any dtype and device of the model, so that a seed determines the weights.
    weight = torch.empty(module.weight.shape, dtype=torch.float32)
    if isinstance(module.start, (int, float)):
        return weight.fill_(module.start)
    if module.start is not None:
        module.start(weight, generator)
        return weight
    if truncate_at is None:
        return weight.normal_(0.0, std, generator=generator)
    return nn.init.trunc_normal_(weight, 0.0, std, -truncate_at * std, truncate_at * std, generator=generator)
