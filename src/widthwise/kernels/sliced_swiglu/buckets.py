"""Which units each token uses, and how tokens of similar width are grouped into dense rectangles."""

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

UNIT_TILE = 64
"""Bucket edges are multiples of this, because matrix products run best at such sizes."""
N_BUCKETS = 8
"""Number of widths to which tokens are rounded up. Four waste more units and, from 128 tokens on, were never faster."""


def whole_units(width: Tensor, margin: float, d_ff: int) -> Tensor:
    """How many leading units have mask 1 and no derivative. Arguments as in `reached_units`."""
    return (width.detach() - margin - 0.5).ceil().clamp(0, d_ff).long()


def reached_units(width: Tensor, margin: float, d_ff: int) -> Tensor:
    """How many leading units a token needs: all later ones have mask 0 and no derivative.

    width: (...), in units; margin: see `reference.sliced_swiglu` -> integers (...).
    """
    return (width.detach() + margin + 0.5).floor().clamp(0, d_ff).long()


def bucket_edges(d_ff: int) -> list[int]:
    """At most `N_BUCKETS` nearly equal steps up to d_ff; all edges but the last are multiples of `UNIT_TILE`."""
    n_tiles = -(-d_ff // UNIT_TILE)
    n_buckets = min(N_BUCKETS, n_tiles)
    return [*(UNIT_TILE * round(n_tiles * i / n_buckets) for i in range(1, n_buckets)), d_ff]


def bucketed_units(width: Tensor, margin: float, d_ff: int) -> Tensor:
    """Units computed for a token: its reached units rounded up to a bucket edge (0 stays 0).

    Arguments as in `reached_units` -> integers (...). The sum over tokens times 4 d_model + 2 d_out is the FLOPs of the
    forward pass in stripes, except for the few rows that `plan_stripes` adds by rounding and, where a mask ends before
    its derivative does, the rows that w_down leaves out.
    """
    ends = torch.tensor([0, *bucket_edges(d_ff)], device=width.device)
    return ends[torch.searchsorted(ends, reached_units(width, margin, d_ff))]


def units_for_all(width: Tensor, margin: float, d_ff: int) -> int:
    """Units that the widest token needs, rounded up to a multiple of `UNIT_TILE`, at most d_ff."""
    n_units = max(reached_units(width, margin, d_ff).tolist(), default=0)
    return min(d_ff, -(-n_units // UNIT_TILE) * UNIT_TILE)


class Stripe(NamedTuple):
    """A rectangle of the tokens x units matrix, with tokens sorted from wide to narrow."""

    units: slice
    n_rows: int
    """The first n_rows tokens are computed; the mask of all later ones is 0 here."""
    n_used: int
    """The first n_used tokens have a mask above 0 here; later ones only a derivative."""
    n_whole: int
    """The first n_whole tokens have mask 1 on the whole stripe, so that the mask is applied to later ones only,"""
    masked_from: int
    """and only from this unit of the stripe on: before it the mask is 1 for all computed tokens."""


def plan_stripes(width: Tensor, margin: float, overlap: float, d_ff: int, row_tile: int) -> list[Stripe]:
    """The fewest stripes that compute every token up to its bucket edge; buckets in which no token ends are merged.

    width: (N,) with N > 0, descending; margin, overlap: see `reference.sliced_swiglu`. `n_rows` and `n_used` are
    rounded up to a multiple of `row_tile`, at most N.
    """
    whole, reach, used = (
        whole_units(width, margin, d_ff),
        *(reached_units(width, far, d_ff) for far in (margin, overlap)),
    )
    edges = bucket_edges(d_ff)
    starts, stops = torch.tensor([0, *edges], device=width.device).unfold(0, 2, 1).unbind(dim=1)
    n_tokens = ((units[:, None] > starts).sum(dim=0) for units in (reach, used))
    n_rows, n_used = ((-(-n // row_tile) * row_tile).clamp(max=len(width)) for n in n_tokens)
    n_whole = (whole[:, None] >= stops).sum(dim=0)
    least_whole = whole[(n_rows - 1).clamp(min=0)]
    counts = torch.stack([n_rows, n_used, n_whole, least_whole], dim=1).tolist()  # the only wait for a device
    stripes, start = [], 0
    for (stop, own), (_, following) in pairwise([*zip(edges, counts), (d_ff, [0] * 4)]):
        if own[:2] != following[:2]:  # else no token ends at this edge: extend the stripe to the next
            rows, used_rows, whole_rows, least = own
            stripes.append(Stripe(slice(start, stop), rows, used_rows, whole_rows, max(0, least - start)))
            start = stop
    return [stripe for stripe in stripes if stripe.n_rows]
