"""The kind of a model in words, for a reader who has not seen its recipe."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from widthwise.model.config import ModelConfig
from widthwise.model.ffn.dynamic import DynamicConfig
from widthwise.model.ffn.dynamic_hourglass import DynamicHourglassConfig
from widthwise.model.ffn.hourglass import HourglassConfig
from widthwise.model.ffn.interface import FFNConfig
from widthwise.model.ffn.mlp import MLPConfig
from widthwise.model.ffn.moe import MoEConfig
from widthwise.model.ffn.swiglu import SwiGLUConfig
from widthwise.model.residual.hyper_connections import HyperConnectionsConfig

FEED_FORWARDS: Mapping[type[FFNConfig], str] = {
    SwiGLUConfig: "SwiGLU feed-forwards",
    MLPConfig: "plain feed-forwards",
    HourglassConfig: "hourglass feed-forwards",
    DynamicConfig: "dynamic-width feed-forwards, which choose for each token how much of their width it uses",
    DynamicHourglassConfig: "hourglass feed-forwards, which choose for each token how many of their blocks it passes",
    MoEConfig: "mixtures of experts as feed-forwards (MoE)",
}


def architecture_words(config: ModelConfig) -> str:
    """`A decoder, x-shaped (...), with hourglass feed-forwards.` and what else sets it apart."""
    return f"A decoder, {profile_words(config.widths)}, with {'; '.join(_features(config))}."


def profile_words(widths: Sequence[int]) -> str:
    """What the widths of the layers do from the first to the last."""
    changes = [after - before for before, after in pairwise(widths) if after != before]
    falls = [change < 0 for change in changes]
    n_turns = sum(before != after for before, after in pairwise(falls))
    if not changes:
        return "uniform in width"
    if n_turns == 0:
        return "narrowing from layer to layer" if falls[0] else "growing wider from layer to layer"
    if n_turns == 1:
        x, diamond = "x-shaped (wide at both ends, narrow within)", "diamond-shaped (narrow at both ends, wide within)"
        return x if falls[0] else diamond
    return "of several widths"


def _features(config: ModelConfig) -> Iterator[str]:
    """A plugin's feed-forward is called by its kind."""
    yield from dict.fromkeys(
        FEED_FORWARDS.get(type(layer.ffn), f"{layer.ffn.kind} feed-forwards") for layer in config.layers
    )
    residual = config.residual
    if isinstance(residual, HyperConnectionsConfig):
        yield f"virtual width (hyper-connections over {residual.n_slots} slots of {residual.slot_width})"
    if config.mtp is not None:
        yield f"multi-token prediction (MTP) of {config.mtp.n_depths} further tokens"
