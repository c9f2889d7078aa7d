"""The boundary between two sublayers in plain torch: the write of one and the read of the next.

Source: virtual-width paper, arXiv:2511.11238, Eq. (6)-(10). The written state is rounded to its dtype before it
is read, as if it had gone through memory.
"""

from typing import NamedTuple

from torch import Tensor

from widthwise.kernels.hyper_connections.reference import read_slots, write_slots


class PendingWrite(NamedTuple):
    """A deferred write: the arguments of `write_slots`. (n slots of b numbers, k = n_read + n + n_write.)"""

    state: Tensor
    """(B, T, n, b)"""
    update: Tensor
    """(B, T, n_write * b)"""
    coefficients: Tensor
    """(B, T, n, k), or (n, k) if shared by all tokens; fp32."""
    n_read: int
    multiplier: float


class Reading(NamedTuple):
    """What a site reads with: the arguments of `read_slots`."""

    static: Tensor
    """(n, k): the coefficients without their token-dependent part."""
    projection: Tensor | None
    """(b, k): slot -> tanh argument; None if all tokens share the coefficients."""
    scale: Tensor | None
    """(n, k): factor of the tanh."""
    n_read: int
    eps: float


def written(stream: Tensor | PendingWrite) -> Tensor:
    """The state, after carrying out a pending write."""
    return write_slots(*stream) if isinstance(stream, PendingWrite) else stream


def boundary(stream: Tensor | PendingWrite, reading: Reading) -> tuple[Tensor, Tensor, Tensor]:
    """The state, the input of a sublayer, and the coefficients for that sublayer's own write.

    stream: a state (B, T, n, b), or the pending write that makes it. -> (B, T, n, b) and (B, T, n_read * b), both in
    the state's dtype; (B, T, n, k), or (n, k) without a projection, in fp32 or wider.
    """
    state = written(stream)
    x, coefficients = read_slots(state, *reading)
    return state, x, coefficients
