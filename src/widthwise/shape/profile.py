"""Profiles over depth: how much attention or feed-forward each layer of a uniform stream has.

Layer-wise scaling of OpenELM (Mehta et al. 2024, arXiv:2404.14619), and the variants of Baroian and Notebomer 2025
(arXiv:2509.06518). Heads and hidden units are moved between layers, never added: every cost but the one of a single
layer stays that of the uniform model.
"""

from collections.abc import Sequence

import numpy as np

from widthwise.model.attention import AttentionTemplate
from widthwise.model.ffn.interface import FFNTemplate, HiddenWidthTemplate


def shares(points: Sequence[float], n_layers: int, is_framed: bool) -> np.ndarray:
    """(n_layers,) sizes of mean 1, on straight lines through the points, which divide the depth evenly.

    is_framed: the first and the last layer keep 1, and the lines lead through those between. Raises ValueError where
    none are between.
    """
    n_between = n_layers - 2 if is_framed else n_layers
    if n_between < 1:
        raise ValueError(f"n_layers: {n_layers} is too few for a profile with framed: true")
    sizes = np.interp(np.linspace(0, 1, n_between), np.linspace(0, 1, len(points)), points)
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
    rule = {"n_heads": None, "head_dim": uniform.head_dim, "ratio": None}
    return [
        attention.model_copy(update={**rule, "d_attention": n_groups * group_width})
        for n_groups in shared_out(uniform.n_kv_heads, sizes, "heads")
    ]


def with_hidden(ffn: FFNTemplate, sizes: np.ndarray, d_model: int) -> list[FFNTemplate]:
    """(n_layers,) the feed-forward of each layer, hidden widths in multiples of its `multiple_of`."""
    if not isinstance(ffn, HiddenWidthTemplate):
        raise ValueError(f"shape.hidden: feed-forward kind {ffn.kind!r} has no hidden width for a profile")
    step = ffn.multiple_of
    counts = shared_out(ffn.whole_hidden(d_model) // step, sizes, "hidden")
    rule = {"ratio": None, "multiple_of": 1}
    return [ffn.model_copy(update={**rule, ffn.hidden_key: count * step}) for count in counts]
