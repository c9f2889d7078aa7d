"""Ranks of the units of a dynamic-width feed-forward, and how growth inserts new units between the old ones.

A token of width fraction f uses the units whose rank, between 0 and 1, is below f. Units are stored sorted by rank. In
a layer that never grew, unit i has rank (i + 1/2) / d_ff. If a growth adds n units, they have ranks
(j + 1/2) / n and are merged into that order, after old units of equal rank. Ranks never change, so every token keeps
exactly the old units that it used.

`sizes`, in all functions: the numbers of units the layer has had, oldest first, the current one last; strictly
increasing.
"""

from itertools import pairwise

import torch
from torch import Tensor


def old_index(sizes: tuple[int, ...]) -> list[int]:
    """For every unit its position before the last growth, -1 if that growth added it. Needs at least two sizes."""
    order = _unsorted(sizes, 1, torch.device("cpu")).argsort(stable=True)
    is_old = order < sizes[-2]
    return torch.where(is_old, is_old.cumsum(dim=0) - 1, -1).tolist()


def grown_centres(sizes: tuple[int, ...], like: Tensor) -> Tensor:
    """rank * sizes[0] of every unit, ascending, with the dtype and device of `like`; i + 1/2 for the original units.

    Not cached, because compiled code cannot hold tensors that depend on the device.
    """
    return _unsorted(sizes, sizes[0], like.device).sort().values.to(like.dtype)


def _unsorted(sizes: tuple[int, ...], scale: int, device: torch.device) -> Tensor:
    """rank * scale in the order in which units were added, in fp64.

    Each is a single rounded division of exact integers, so that equal ranks are equal numbers and others keep their
    order.
    """
    n_added = (sizes[0], *(after - before for before, after in pairwise(sizes)))
    odd = (torch.arange(1, 2 * n, 2, dtype=torch.float64, device=device) for n in n_added)
    return torch.cat([numerators * scale / (2 * n) for numerators, n in zip(odd, n_added)])
