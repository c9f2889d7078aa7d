"""What the virtual-width paper, arXiv:2511.11238, section 3.5, says a stream of n slots costs, m of them a layer's.

Everything is for one token, in units of the layer's width. What the paper prints is for (2, 3).
"""

from typing import NamedTuple


class SiteFlops(NamedTuple):
    """Forward FLOPs of one site, of which a layer has two."""

    norm: float
    coefficients: float
    width: float
    """The read and the carry: [A-circle A-hat] times the state."""
    depth: float
    """The write: B times the update."""


def site_flops(m: int, n: int) -> SiteFlops:
    return SiteFlops(norm=4 * n / m, coefficients=2 * (2 * m + n) * n / m, width=2 * (m + n) * n / m, depth=2 * n)


TOTALS = {
    (2, 3): 48,
    (1, 4): 112,
    (2, 4): 72,
    (4, 8): 136,
    (4, 16): 400,
    (8, 16): 264,
    (8, 32): 784,
    (8, 64): 2592,
}
"""(m, n) -> the sum of a site's FLOPs, worked out by hand."""


def site_params(m: int, n: int, slot_width: int) -> int:
    """Static table, scales of its entries, one matrix that all slots share, and the gain of its norm."""
    return 2 * n * (2 * m + n) + slot_width * (2 * m + n) + slot_width


def extra_activation_share(m: int, n: int, saved: float, baseline: float = 34) -> float:
    """Bytes of 16-bit numbers that a layer keeps for its sites, over the bytes it keeps without them.

    saved: fraction of states that are kept, the others being computed again from the one before. baseline: bytes in
    units of the width, 34 in Megatron's count with selective recomputation (arXiv:2205.05198), dropout masks included.
    What is read and written is computed again too, so that the states are all that is added: 2 sites of 2 n / m bytes.
    """
    return 2 * 2 * saved * (n / m) / baseline
