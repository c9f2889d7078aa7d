"""Sizes of layers along the depth by linear interpolation, and attention and feed-forwards with these sizes."""

from collections.abc import Iterable, Sequence

import numpy as np

from widthwise.model.attention import AttentionTemplate
from widthwise.model.ffn.interface import FFNTemplate, HiddenWidthTemplate


def along(points: Sequence[float], n_layers: int) -> np.ndarray:
    """Interpolate linearly between points that divide the depth evenly: (n_layers,)."""
    return np.interp(np.linspace(0, 1, n_layers), np.linspace(0, 1, len(points)), points)


def with_attention_widths(
    attention: AttentionTemplate, factors: np.ndarray, d_model: int, widths: Sequence[float]
) -> list[AttentionTemplate]:
    """Return the attention of each layer, `factors` times as wide as the template at these widths.

    Heads keep their size at d_model. For integer widths there are whole groups of heads, at least one; for real widths,
    in the comparison of costs, fractions of groups.
    """
    uniform = attention.at_width(d_model)
    unit = uniform.head_dim * attention.kv_group_size
    wanted = [factor * attention.width(width) for factor, width in zip(factors, widths, strict=True)]
    if all(isinstance(width, int) for width in widths):
        wanted = [max(1, round(width / unit)) * unit for width in wanted]
    return _with_widths(attention, uniform.head_dim, wanted)


def _with_widths(attention: AttentionTemplate, head_dim: int, widths: Iterable[float]) -> list[AttentionTemplate]:
    rule = {"n_heads": None, "head_dim": head_dim, "ratio": None}
    return [attention.model_copy(update={**rule, "d_attention": width}) for width in widths]


def with_hidden_ratios(ffn: FFNTemplate, factors: np.ndarray) -> list[FFNTemplate]:
    """Return the feed-forward of each layer, with `factors` times the template's ratio of hidden width.

    Raises ValueError if the template has no such ratio.
    """
    if not isinstance(ffn, HiddenWidthTemplate):
        raise ValueError(f"shape.hidden: feed-forward kind {ffn.kind!r} has no hidden width for a curve")
    if getattr(ffn, ffn.hidden_key) is not None:
        raise ValueError(f"shape.hidden: needs ffn.ratio, not ffn.{ffn.hidden_key}, because it scales the ratio")
    return [ffn.model_copy(update={"ratio": (ffn.ratio or ffn.usual_ratio) * float(factor)}) for factor in factors]


def shares(points: Sequence[float], n_layers: int, is_framed: bool) -> np.ndarray:
    """Interpolate linearly between points that divide the depth evenly, and scale to mean 1: (n_layers,).

    is_framed: the first and last layer get 1, and the points apply to the layers between. Raises ValueError if there
    are none.
    """
    n_between = n_layers - 2 if is_framed else n_layers
    if n_between < 1:
        raise ValueError(f"n_layers: {n_layers} is too few for a profile with framed: true")
    sizes = along(points, n_between)
    sizes = sizes / sizes.mean()
    return np.concatenate([[1.0], sizes, [1.0]]) if is_framed else sizes


def apportioned(mean: int, sizes: np.ndarray, key: str) -> list[int]:
    """Return (n_layers,) whole numbers with that mean, proportional to sizes of mean 1.

    Numbers are rounded down, and the remainder goes to the layers that lost most. key: in the recipe. Raises ValueError
    if a layer would get 0.
    """
    wanted = mean * sizes
    counts = np.floor(wanted + 1e-9).astype(int)
    n_left = mean * len(sizes) - int(counts.sum())
    counts[np.argsort(counts - wanted, kind="stable")[:n_left]] += 1
    if counts.min() < 1:
        layer = int(np.argmin(counts)) + 1
        raise ValueError(
            f"shape.{key}: leaves nothing for layer {layer} of {len(sizes)}, which would get {wanted.min():.2g} "
            f"where the mean is {mean}; give a flatter profile, or smaller and more of them"
        )
    return counts.tolist()


def with_heads(attention: AttentionTemplate, sizes: np.ndarray, d_model: int) -> list[AttentionTemplate]:
    """Return the attention of each layer, with whole groups of heads of the uniform model's size."""
    uniform = attention.at_width(d_model)
    group_width = attention.kv_group_size * uniform.head_dim
    n_groups = apportioned(uniform.n_kv_heads, sizes, "heads")
    return _with_widths(attention, uniform.head_dim, (n * group_width for n in n_groups))


def with_hidden(ffn: FFNTemplate, sizes: np.ndarray, d_model: int) -> list[FFNTemplate]:
    """Return the feed-forward of each layer, with hidden widths in multiples of its `multiple_of`."""
    if not isinstance(ffn, HiddenWidthTemplate):
        raise ValueError(f"shape.hidden: feed-forward kind {ffn.kind!r} has no hidden width for a profile")
    step = ffn.multiple_of
    counts = apportioned(ffn.whole_hidden(d_model) // step, sizes, "hidden")
    rule = {"ratio": None, "multiple_of": 1}
    return [ffn.model_copy(update={**rule, ffn.hidden_key: count * step}) for count in counts]
