"""Initial weights from the names of the axes.

The paper's recipe (variable-width paper, section 4 of its release): embedding and head normal(std); a matrix that reads
the stream normal(std / sqrt(width_multiplier) * sqrt(d_model / w)) in a layer of width w; one that writes it the same
divided by the root of the number of updates the stream receives, 2 * n_layers where every layer has one attention and
one feed-forward; gains 1. With width_multiplier = d_model / base width this is muP for Adam; kept constant
it is the paper's.
"""

import math

import pydantic
import torch
from torch import nn

from widthwise.config_io import Config
from widthwise.model.axes import Linear, Weight


class InitConfig(Config):
    """Standard deviations of the initial weights."""

    std: pydantic.PositiveFloat = 0.02
    """Standard deviation of embedding and head; that of the other matrices derives from it."""
    width_multiplier: pydantic.PositiveFloat = 1.0
    """m_width: hidden matrices have std / sqrt(m_width), and their learning rate is divided by it."""
    depth_scaled: bool = True
    """Whether matrices that write the stream are divided by the root of the number of updates it receives, 2 * n_layers
    in a plain decoder (GPT-2) and n_layers * (1 + n_blocks) with hourglass feed-forwards."""
    truncate_at: pydantic.PositiveFloat | None = None
    """Standard deviations beyond which nothing is drawn, 3 in OLMo 2; null: all is."""


def initial_std(config: InitConfig, module: nn.Module, width_ratio: float, n_additions: int) -> float:
    """Standard deviation of the weight of a module inside a layer: `std`, which matrices scale by width and depth.

    width_ratio: d_model of the embedding over the layer's width; n_additions: updates the stream receives.
    """
    if not isinstance(module, Linear):
        return config.std
    std = config.std / math.sqrt(config.width_multiplier) * math.sqrt(width_ratio)
    writes_stream = "d_model" in module.out_axes and "d_model" not in module.in_axes
    return std / math.sqrt(n_additions) if writes_stream and config.depth_scaled else std


@torch.no_grad()
def fill(module: nn.Module, std: float, generator: torch.Generator, truncate_at: float | None = None) -> None:
    """Fills the own weight of one module, where it has one: with what it starts at, or normal(std).

    truncate_at: cut of the normal distribution, in standard deviations.
    """
    if not isinstance(module, Weight):
        return
    if isinstance(module.start, (int, float)):
        module.weight.fill_(module.start)
        return
    # Drawn on the CPU in fp32 whatever the model's type and device, so that a seed names one set of weights.
    drawn = torch.empty(module.weight.shape, dtype=torch.float32)
    if module.start is not None:
        module.start(drawn, generator)
    elif truncate_at is None:
        drawn.normal_(0.0, std, generator=generator)
    else:
        nn.init.trunc_normal_(drawn, 0.0, std, -truncate_at * std, truncate_at * std, generator=generator)
    module.weight.copy_(drawn)


def fill_part(
    part: nn.Module, config: InitConfig, width_ratio: float, n_additions: int, generator: torch.Generator
) -> None:
    """Fills every weight of a layer, or of an end of the stream. The numbers are those of `initial_std`."""
    for module in part.modules():
        fill(module, initial_std(config, module, width_ratio, n_additions), generator, config.truncate_at)
