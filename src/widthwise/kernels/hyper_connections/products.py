"""Products of many tiny matrices, one pair for each token. Torch's FLOP counter does not see all of them."""

import torch
from torch import Tensor

MIN_MULTIPLICATIONS = 400
"""Multiplications r k w of one pair below which torch's batched product takes a loop over single numbers, four times as
slow as a sum of outer products."""


def product(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """a b, written to `out`. a: (N, r, k), b: (N, k, w), out: (N, r, w)."""
    return torch.bmm(a, b, out=out) if _is_large(a, b) else _add_outer(out.zero_(), a, b, 1.0)


def add_product(total: Tensor, a: Tensor, b: Tensor, factor: float) -> Tensor:
    """total += factor a b. total: (N, r, w); a, b: as in `product`."""
    return total.baddbmm_(a, b, alpha=factor) if _is_large(a, b) else _add_outer(total, a, b, factor)


def _is_large(a: Tensor, b: Tensor) -> bool:
    return a.shape[1] * b.shape[1] * b.shape[2] >= MIN_MULTIPLICATIONS


def _add_outer(total: Tensor, a: Tensor, b: Tensor, factor: float) -> Tensor:
    for i in range(b.shape[1]):
        total.addcmul_(a[..., i : i + 1], b[:, i : i + 1], value=factor)
    return total
