"""The modules of a model in which tokens can have different hidden widths, and what they chose."""

from collections.abc import Sequence

from torch import Tensor

from widthwise.model.context import Choices
from widthwise.model.decoder import Decoder
from widthwise.model.ffn.width_choice_module import WidthChoosing


def dynamic_modules(model: Decoder) -> dict[int, WidthChoosing]:
    """Position among all layers, from 0 -> the feed-forward."""
    modules = {index: layer.ffn for index, layer in enumerate(model.layers)}
    return {index: module for index, module in modules.items() if isinstance(module, WidthChoosing)}


def width_fractions(choices: Sequence[Choices]) -> list[Tensor]:
    """(B, T) for each dynamic-width layer, in their order."""
    return [chosen["width_fraction"] for chosen in choices if "width_fraction" in chosen]
