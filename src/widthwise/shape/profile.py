"""Sizes of layers along the depth: points on straight lines, and the attention and feed-forwards that have them."""

from collections.abc import Iterable, Sequence

import numpy as np

from widthwise.model.attention import AttentionTemplate
from widthwise.model.ffn.hourglass import HourglassTemplate
from widthwise.model.ffn.interface import FFNTemplate, HiddenWidthTemplate
from widthwise.model.layer import LayerConfig
from widthwise.records.shrinking import LayerSizes


def sizes_of(layer: LayerConfig) -> LayerSizes:
    """Return the sizes of a layer that a curve gives."""
    attention = layer.attention.n_heads * layer.attention.head_dim
    return LayerSizes(width=layer.d_model, attention=attention, hidden=sum(layer.ffn.hidden_widths))


def along(points: Sequence[float], n_layers: int) -> np.ndarray:
    """(n_layers,) values on straight lines through points that divide the depth evenly."""
    return np.interp(np.linspace(0, 1, n_layers), np.linspace(0, 1, len(points)), points)


def with_attention_widths(
    attention: AttentionTemplate, factors: np.ndarray, d_model: int, widths: Sequence[float]
) -> list[AttentionTemplate]:
    """(n_layers,) attention that is `factors` times as wide as the template makes it at these widths.

    Heads keep the size that they have at d_model. At whole widths they are whole groups of heads, at least one; at
    real ones, for which costs are counted, fractions of them.
    """
    uniform = attention.at_width(d_model)
    unit = uniform.head_dim * attention.kv_group_size
    are_whole = all(isinstance(width, int) for width in widths)
    wanted = [factor * attention.width(width) for factor, width in zip(factors, widths, strict=True)]
    if are_whole:
        wanted = [max(1, round(width / unit)) * unit for width in wanted]
    return _with_widths(attention, uniform.head_dim, wanted)


def _with_widths(attention: AttentionTemplate, head_dim: int, widths: Iterable[float]) -> list[AttentionTemplate]:
    rule = {"n_heads": None, "head_dim": head_dim, "ratio": None}
    return [attention.model_copy(update={**rule, "d_attention": width}) for width in widths]


def with_hidden_ratios(ffn: FFNTemplate, factors: np.ndarray) -> list[FFNTemplate]:
    """(n_layers,) feed-forwards with `factors` times the hidden width over the stream's.

    Raises ValueError where the template has no such ratio.
    """
    if not isinstance(ffn, HiddenWidthTemplate):
        raise ValueError(f"shape.hidden: feed-forward kind {ffn.kind!r} has no hidden width for a curve")
    if getattr(ffn, ffn.hidden_key) is not None:
        raise ValueError(f"shape.hidden: needs ffn.ratio, not ffn.{ffn.hidden_key}, because it scales the ratio")
    return [ffn.model_copy(update={"ratio": (ffn.ratio or ffn.usual_ratio) * float(factor)}) for factor in factors]


def with_blocks(ffns: Sequence[FFNTemplate], factors: np.ndarray) -> list[FFNTemplate]:
    """(n_layers,) hourglasses with `factors` times as many blocks, rounded, at least one.

    Raises ValueError where a feed-forward is not made of blocks.
    """
    templates = list[FFNTemplate]()
    for ffn, factor in zip(ffns, factors, strict=True):
        if not isinstance(ffn, HourglassTemplate):
            raise ValueError(f"shape.blocks: feed-forward kind {ffn.kind!r} has no blocks for a curve")
        templates.append(ffn.model_copy(update={"n_blocks": max(1, round(ffn.n_blocks * float(factor)))}))
    return templates


def shares(points: Sequence[float], n_layers: int, is_framed: bool) -> np.ndarray:
    """(n_layers,) sizes of mean 1, on straight lines through the points, which divide the depth evenly.

    is_framed: the first and the last layer keep 1, and the lines lead through those between. Raises ValueError where
    none are between.
    """
    n_between = n_layers - 2 if is_framed else n_layers
    if n_between < 1:
        raise ValueError(f"n_layers: {n_layers} is too few for a profile with framed: true")
    sizes = along(points, n_between)
    sizes = sizes / sizes.mean()
    return np.concatenate([[1.0], sizes, [1.0]]) if is_framed else sizes


def shared_out(n_each: int, sizes: np.ndarray, key: str) -> list[int]:
    """(n_layers,) whole numbers proportional to sizes of mean 1, n_each on average.

    Rounded down, and what is left goes to those that lost most. key: of the recipe. Raises ValueError where a layer
    would get none.
    """
    wanted = n_each * sizes
    counts = np.floor(wanted + 1e-9).astype(int)
    n_left = n_each * len(sizes) - int(counts.sum())
    counts[np.argsort(counts - wanted, kind="stable")[:n_left]] += 1
    if counts.min() < 1:
        layer = int(np.argmin(counts)) + 1
        raise ValueError(
            f"shape.{key}: leaves nothing for layer {layer} of {len(sizes)}, which would get {wanted.min():.2g} "
            f"where the mean is {n_each}; give a flatter profile, or smaller and more of them"
        )
    return counts.tolist()


def with_heads(attention: AttentionTemplate, sizes: np.ndarray, d_model: int) -> list[AttentionTemplate]:
    """(n_layers,) the attention of each layer: heads of the uniform model's size, in whole groups."""
    uniform = attention.at_width(d_model)
    group_width = attention.kv_group_size * uniform.head_dim
    n_groups = shared_out(uniform.n_kv_heads, sizes, "heads")
    return _with_widths(attention, uniform.head_dim, (n * group_width for n in n_groups))


def with_hidden(ffn: FFNTemplate, sizes: np.ndarray, d_model: int) -> list[FFNTemplate]:
    """(n_layers,) the feed-forward of each layer, hidden widths in multiples of its `multiple_of`."""
    if not isinstance(ffn, HiddenWidthTemplate):
        raise ValueError(f"shape.hidden: feed-forward kind {ffn.kind!r} has no hidden width for a profile")
    step = ffn.multiple_of
    counts = shared_out(ffn.whole_hidden(d_model) // step, sizes, "hidden")
    rule = {"ratio": None, "multiple_of": 1}
    return [ffn.model_copy(update={**rule, ffn.hidden_key: count * step}) for count in counts]
