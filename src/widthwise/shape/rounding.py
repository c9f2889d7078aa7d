"""From continuous widths to multiples of a quantum."""

import math

import numpy as np

from widthwise.config_io import UserError
from widthwise.shape.solve import WidthCost

TOLERANCE = 0.0005
"""The miss of the budget, as a fraction of it, below which balanced rounding looks no further."""
MOST_CANDIDATES = 200_000


def round_nearest(widths: np.ndarray, quantum: int, least_quantum: int = 1) -> np.ndarray:
    """(n_layers,) widths -> the nearest multiples of `quantum` as integers; ties go to the even multiple.

    least_quantum: what a quantum must be a multiple of. Source: arXiv:2606.18246, Appendix A, last equation. Raises
    UserError where a layer would vanish.
    """
    rounded = np.rint(widths / quantum).astype(np.int64) * quantum
    if rounded.min() < 1:
        layer = int(np.argmin(widths))
        largest = math.ceil(2 * widths[layer]) - 1  # half a quantum itself is a tie, and goes to 0
        largest -= largest % least_quantum
        remedy = f"the largest quantum that works is {largest}" if largest >= 1 else "no quantum works: widen the shape"
        if largest < 1 < least_quantum:
            remedy += f", or give smaller heads or slots, of which a quantum of {least_quantum} must be whole ones"
        raise UserError(
            f"model.shape.quantum: {quantum} rounds layer {layer + 1} of {len(widths)} ({widths[layer]:.4g} channels) "
            f"to no channels; {remedy}"
        )
    return rounded


def round_balanced(
    widths: np.ndarray, quantum: int, cost: WidthCost, budget: float, least_quantum: int = 1
) -> np.ndarray:
    """(n_layers,) widths -> multiples of `quantum` as integers that together cost `budget` to within TOLERANCE.

    Each layer goes up or down to the next multiple. Among the choices within TOLERANCE the one with the least summed
    distance from `widths` wins; where there is none, the one with the smallest miss. Every choice is examined for up to
    17 layers, and for more those with few layers away from the nearest multiple. Raises what `round_nearest` raises.
    """
    nearest = round_nearest(widths, quantum, least_quantum)
    second = nearest + quantum * np.sign(widths - nearest).astype(np.int64)
    movable = np.flatnonzero((second != nearest) & (second > 0))
    changes = (cost.per_layer(second) - cost.per_layer(nearest))[movable]
    detours = (np.abs(second - widths) - np.abs(nearest - widths))[movable]
    subsets = Subsets(len(movable))
    misses = np.abs(cost.total(nearest) - budget + subsets.sums(changes)) / budget
    good = misses <= max(TOLERANCE, misses.min())
    chosen = movable[subsets.members(int(np.argmin(np.where(good, subsets.sums(detours), np.inf))))]
    nearest[chosen] = second[chosen]
    return nearest


class Subsets:
    """The subsets of n things, the empty one first: all of them, or as many small ones as MOST_CANDIDATES allows."""

    def __init__(self, n: int):
        k, count = 0, 1
        while k < n and count + math.comb(n, k + 1) <= MOST_CANDIDATES:
            k, count = k + 1, count + math.comb(n, k + 1)
        sizes = np.zeros(count, dtype=np.int64)
        self._steps: list[tuple[int, np.ndarray]] = []
        filled = 1
        for _ in range(n):
            parents = np.flatnonzero(sizes[:filled] < k)
            sizes[filled : filled + len(parents)] = sizes[parents] + 1
            self._steps.append((filled, parents))
            filled += len(parents)
        assert filled == count
        self._count = count

    def sums(self, values: np.ndarray) -> np.ndarray:
        """(n,) values -> (subsets,) the sum of the values of each subset's members."""
        sums = np.zeros(self._count)
        for (start, parents), value in zip(self._steps, values, strict=True):
            sums[start : start + len(parents)] = sums[parents] + value
        return sums

    def members(self, subset: int) -> list[int]:
        """The things in a subset."""
        members = []
        for thing, (start, parents) in reversed(list(enumerate(self._steps))):
            if subset >= start:
                members.append(thing)
                subset = int(parents[subset - start])
        return members
