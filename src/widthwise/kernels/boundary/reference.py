"""The boundary between two sublayers in plain torch: the write of one and the read of the next.

Source: virtual-width paper, arXiv:2511.11238, Eq. (6)-(10). The state that the write makes is rounded to its type, and
the read sees the rounded one.
"""

from typing import NamedTuple

from torch import Tensor

from widthwise.kernels.hyper_connections.reference import read_slots, write_slots


class PendingWrite(NamedTuple):
    """A write that is not done yet: the arguments of `write_slots`."""

    state: Tensor
    """(B, T, n, b)"""
    update: Tensor
    """(B, T, n_write * b)"""
    coefficients: Tensor
    """(B, T, n, k), or the same for all tokens (n, k), fp32; k = n_read + n + n_write"""
    n_read: int
    multiplier: float


class Reading(NamedTuple):
    """What a site reads with: the arguments of `read_slots`."""

    static: Tensor
    """(n, k)"""
    projection: Tensor | None
    """(b, k)"""
    scale: Tensor | None
    """(n, k)"""
    n_read: int
    eps: float


def written(stream: Tensor | PendingWrite) -> Tensor:
    """The state, a pending write done."""
    return write_slots(*stream) if isinstance(stream, PendingWrite) else stream


def boundary(stream: Tensor | PendingWrite, reading: Reading) -> tuple[Tensor, Tensor, Tensor]:
    """The state, what a sublayer reads of it, and the coefficients of its own write.

    stream: a state (B, T, n, b), or the write that makes it. -> (B, T, n, b); (B, T, n_read * b), both in the state's
    type; (B, T, n, k), or without a projection (n, k), in fp32 or wider.
    """
    state = written(stream)
    x, coefficients = read_slots(state, *reading)
    return state, x, coefficients
