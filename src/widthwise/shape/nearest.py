"""The size at which a model is nearest to a budget."""

import itertools
import math
from collections.abc import Callable, Iterable

NEIGHBOURS = 4
"""Sizes on either side of the nearest that are looked at, because rounded widths can make costs fall where they should
rise."""
LARGEST = 2**40
"""Where the search ends if nothing that grows meets the budget."""


def nearest_size(miss: Callable[[int], float], start: int) -> int:
    """The whole number, at least 1, whose miss is nearest to zero: no other within NEIGHBOURS of it is nearer.

    miss: signed, rising with the size but for the unevenness of rounding; NaN where there is no model of that size.
    start: a size that there is.
    """
    low, high = start, start
    while miss(high) < 0 and high < LARGEST:
        low, high = high, 2 * high
    while low > 0 and miss(low) > 0:
        low, high = low // 2, low
    while high - low > 1:
        middle = (low + high) // 2
        # A size that there is not lies beyond those that there are: above the start on the way up, below it down.
        is_low = miss(middle) < 0 if low >= start else not miss(middle) > 0
        low, high = (middle, high) if is_low else (low, middle)
    best = _least([start, low, high], miss)
    while (better := _least([best, *range(best - NEIGHBOURS, best + NEIGHBOURS + 1)], miss)) != best:
        best = better
    return best


def closest_size(miss: Callable[[int], float], start: int, sizes: range, tolerance: float) -> int:
    """The size closest to `start` whose miss is within the tolerance; where there is none, the one with the least."""
    by_distance = sorted(sizes, key=lambda size: abs(size - start))
    close = (size for size in by_distance if abs(miss(size)) <= tolerance)
    return next(itertools.chain(close, [_least([start, *by_distance], miss)]))


def _least(sizes: Iterable[int], miss: Callable[[int], float]) -> int:
    """The first of those with the least miss."""
    return min((size for size in sizes if size > 0), key=lambda size: _distance(miss(size)))


def _distance(miss: float) -> float:
    return math.inf if math.isnan(miss) else abs(miss)
