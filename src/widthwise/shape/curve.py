"""Curves over the depth: sizes of layers in proportion to each other, at any number of layers."""

from collections.abc import Sequence

import numpy as np

from widthwise.model.attention import AttentionTemplate
from widthwise.model.ffn.hourglass import StackTemplate
from widthwise.model.ffn.interface import FFNTemplate, HiddenWidthTemplate


def along(points: Sequence[float], n_layers: int) -> np.ndarray:
    """(n_layers,) values on straight lines through points that divide the depth evenly."""
    return np.interp(np.linspace(0, 1, n_layers), np.linspace(0, 1, len(points)), points)


def with_attention_widths(
    attention: AttentionTemplate, factors: np.ndarray, d_model: int, widths: Sequence[float]
) -> list[AttentionTemplate]:
    """(n_layers,) attention that is `factors` times as wide as the template makes it at these widths.

    Heads keep the size that they have at d_model. At whole widths they are whole groups of heads, at least one; at
    real ones, of which costs are asked, fractions of them.
    """
    uniform = attention.at_width(d_model)
    unit = uniform.head_dim * attention.kv_group_size
    are_whole = all(isinstance(width, int) for width in widths)
    wanted = [factor * attention.width(width) for factor, width in zip(factors, widths, strict=True)]
    if are_whole:
        wanted = [max(1, round(width / unit)) * unit for width in wanted]
    rule = {"n_heads": None, "head_dim": uniform.head_dim, "ratio": None}
    return [attention.model_copy(update={**rule, "d_attention": width}) for width in wanted]


def with_hidden_ratios(ffn: FFNTemplate, factors: np.ndarray) -> list[FFNTemplate]:
    """(n_layers,) feed-forwards with `factors` times the hidden width over the stream's.

    Raises ValueError where the template has no such ratio.
    """
    if not isinstance(ffn, HiddenWidthTemplate):
        raise ValueError(f"shape.hidden: feed-forward kind {ffn.kind!r} has no hidden width for a curve")
    if getattr(ffn, ffn.hidden_key) is not None:
        raise ValueError(
            f"shape.hidden: needs ffn.ratio, not ffn.{ffn.hidden_key}, because the curve says of the ratio"
        )
    return [ffn.model_copy(update={"ratio": (ffn.ratio or ffn.usual_ratio) * float(factor)}) for factor in factors]


def with_blocks(ffns: Sequence[FFNTemplate], factors: np.ndarray) -> list[FFNTemplate]:
    """(n_layers,) hourglasses with `factors` times as many blocks, rounded, at least one.

    Raises ValueError where a feed-forward is not made of blocks.
    """
    found = list[FFNTemplate]()
    for ffn, factor in zip(ffns, factors, strict=True):
        if not isinstance(ffn, StackTemplate):
            raise ValueError(f"shape.blocks: feed-forward kind {ffn.kind!r} has no blocks for a curve")
        found.append(ffn.model_copy(update={"n_blocks": max(1, round(ffn.n_blocks * float(factor)))}))
    return found
