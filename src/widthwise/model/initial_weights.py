"""Initial weights from the names of the axes.

The paper's recipe (variable-width paper, section 4 of its release): embedding and head normal(std); a matrix that reads
the stream normal(std / sqrt(width_multiplier) * sqrt(d_model / w)) in a layer of width w; one that writes it the same
divided by the root of the number of updates the stream receives, 2 * n_layers where every layer has one attention and
one feed-forward; gains 1. With width_multiplier = d_model / base width this is muP for Adam; kept constant
it is the paper's.
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from widthwise.model.axes import Linear, Weight

if TYPE_CHECKING:
    from widthwise.model.init import InitConfig


def initial_std(config: "InitConfig", module: nn.Module, width_ratio: float, n_additions: int) -> float:
    """Standard deviation of the weight of a module inside a layer: `std`, which matrices scale by width and depth.

    width_ratio: d_model of the embedding over the layer's width; n_additions: updates the stream receives.
    """
    if not isinstance(module, Linear):
        return config.std
    std = config.std / math.sqrt(config.width_multiplier) * math.sqrt(width_ratio)
    writes_stream = "d_model" in module.out_axes and "d_model" not in module.in_axes
    return std / math.sqrt(n_additions) if writes_stream and config.depth_scaled else std


def drawn(module: nn.Module, std: float, generator: torch.Generator, truncate_at: float | None = None) -> Tensor | None:
    """The whole initial weight of one module: what it starts at, or normal(std), in fp32; None without a weight.

    truncate_at: cut of the normal distribution, in standard deviations.
    """
    if not isinstance(module, Weight):
        return None
    # Drawn on the CPU in fp32 whatever the model's type and device, so that a seed names one set of weights.
    weight = torch.empty(module.weight.shape, dtype=torch.float32)
    if isinstance(module.start, (int, float)):
        return weight.fill_(module.start)
    if module.start is not None:
        module.start(weight, generator)
        return weight
    if truncate_at is None:
        return weight.normal_(0.0, std, generator=generator)
    return nn.init.trunc_normal_(weight, 0.0, std, -truncate_at * std, truncate_at * std, generator=generator)


@torch.no_grad()
def fill(module: nn.Module, std: float, generator: torch.Generator, truncate_at: float | None = None) -> None:
    """Fills the own weight of one module, where it has one, with what `drawn` gives."""
    weight = drawn(module, std, generator, truncate_at)
    if weight is not None:
        cast(Weight, module).weight.copy_(weight)


def part_stds(
    part: nn.Module, config: "InitConfig", width_ratio: float, n_additions: int
) -> Iterator[tuple[nn.Module, float]]:
    """Every module of a layer, or of an end of the stream, with the std of its weight. Numbers as in `initial_std`."""
    for module in part.modules():
        yield module, initial_std(config, module, width_ratio, n_additions)
