"""Token files whose tokens show where they come from."""

from pathlib import Path

import numpy as np

from widthwise.data.mixture import TokenMixture
from widthwise.data.shards import ShardWriter, TokenFile

N_TOKENS = (997, 311, 2003)
"""Tokens of each of the three sources."""


def counting_tokens(prefix: Path, n_tokens: int, first: int = 0) -> TokenFile:
    """A file whose token i is first + i, so that a window shows where it was cut."""
    with ShardWriter(prefix, np.dtype("<i4")) as writer:
        writer.add(np.arange(first, first + n_tokens, dtype="<i4"), np.array([n_tokens]))
    return TokenFile(prefix)


def three_sources(folder: Path) -> TokenMixture:
    """Sources a, b and c, of which a has the first tokens, c the last."""
    firsts = np.cumsum([0, *N_TOKENS]).tolist()
    files = {name: counting_tokens(folder / name, n, first) for name, n, first in zip("abc", N_TOKENS, firsts)}
    return TokenMixture(files, {"a": 1, "b": 3, "c": 4})
