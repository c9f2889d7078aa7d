"""Axes: what the dimensions of a weight are called, and how many entries they have."""

Axes = dict[str, int]
"""Axis names with their sizes, outermost first: {"n_heads": 16, "head_dim": 40} is an axis of 640 entries."""


def size(axes: Axes) -> int:
    """Number of entries along the flattened axes."""
    n = 1
    for entries in axes.values():  # math.prod would break the graph of a compiled layer
        n *= entries
    return n
