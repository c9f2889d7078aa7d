"""Rounding: of real widths to multiples of a quantum, and of shares to whole numbers with the same sum."""

import itertools
import math
from functools import lru_cache

import numpy as np

from widthwise.mistakes import UserError
from widthwise.shape.schedule import WidthCost

TOLERANCE = 0.0005
"""Relative miss of the budget that balanced rounding accepts."""
FAR = 0.005
"""Miss above which balanced rounding tries more than the two nearest multiples. Comparisons allow 0.01."""
MOST_CHOICES = 200_000  # enough for the 2^17 choices of 17 layers


def round_nearest(widths: np.ndarray, quantum: int, least_quantum: int = 1) -> np.ndarray:
    """Round widths, (n_layers,), to the nearest multiples of `quantum`. Ties go to the even multiple.

    least_quantum: divisor of every allowed quantum. Raises UserError if a layer would have no channels.
    Source: arXiv:2606.18246, Appendix A, last equation.
    """
    rounded = np.rint(widths / quantum).astype(np.int64) * quantum
    if rounded.min() < 1:
        layer = int(np.argmin(widths))
        largest = math.ceil(2 * widths[layer]) - 1  # half a quantum is a tie that goes to 0
        largest -= largest % least_quantum
        remedy = f"the largest quantum that works is {largest}" if largest >= 1 else "no quantum works: widen the shape"
        if largest < 1 < least_quantum:
            remedy += f", or give smaller heads or slots, which need a quantum of at least {least_quantum}"
        raise UserError(
            f"model.shape.quantum: {quantum} rounds layer {layer + 1} of {len(widths)} ({widths[layer]:.4g} channels) "
            f"to no channels; {remedy}"
        )
    return rounded


def round_whole(widths: np.ndarray, quantum: int, d_model: int, least_quantum: int = 1) -> np.ndarray:
    """Round as `round_nearest`, but down where rounding up would add coordinates that nothing writes or nothing reads.

    These exist where a layer is wider than d_model and than all layers before it, or than all layers after it.
    """
    rounded = round_nearest(widths, quantum, least_quantum)
    below = np.floor(widths / quantum).astype(np.int64) * quantum
    while (goes_down := (below > 0) & _exceeds(rounded, widths, d_model)).any():  # its neighbours may have to follow
        rounded = np.where(goes_down, below, rounded)
    return rounded


def round_balanced(
    widths: np.ndarray, quantum: int, cost: WidthCost, budget: float, least_quantum: int = 1
) -> np.ndarray:
    """Round widths, (n_layers,), to multiples of `quantum` whose total cost is `budget` to within TOLERANCE.

    Each layer is rounded up or down, but never exceeds the stream unless its real width does. If the first and last
    layer have one width, they keep one. Among the choices within TOLERANCE, take the smallest total distance from
    `widths`; if there is none, the smallest miss. If that is above FAR because of these two conditions, a layer may
    also take the multiple on the other side of its nearest one. All choices are tried for up to 17 layers, and only
    choices with few moves for more. Raises as `round_nearest`.
    """
    nearest = round_whole(widths, quantum, cost.d_model, least_quantum)
    second = nearest + quantum * np.sign(widths - nearest).astype(np.int64)
    rounded, miss, least = _best(nearest, second[None], widths, cost, budget)
    if miss > max(FAR, least):
        rounded, _, _ = _best(nearest, np.stack([second, 2 * nearest - second]), widths, cost, budget)
    return rounded


def _best(
    nearest: np.ndarray, alternatives: np.ndarray, widths: np.ndarray, cost: WidthCost, budget: float
) -> tuple[np.ndarray, float, float]:
    """Return the best choice of `round_balanced`, its miss, and the smallest miss including refused choices.

    alternatives: (n, n_layers), the other multiples that each layer may take. A move takes one of them in one layer,
    and a choice is a set of moves.
    """
    # Not by scipy.optimize.milp, whose solver prints on standard output (within the output of --json), may take
    # seconds, and returns any one of several equally good choices.
    rows, layers = np.nonzero((alternatives != nearest) & (alternatives > 0))
    if not layers.size:
        return nearest, 0.0, 0.0
    targets = alternatives[rows, layers]
    costs = np.stack([cost.per_layer(np.maximum(alternative, 1)) for alternative in alternatives])
    changes = costs[rows, layers] - cost.per_layer(nearest)[layers]
    detours = np.abs(targets - widths[layers]) - np.abs(nearest - widths)[layers]
    choices = _choices(len(layers))
    misses = np.abs(cost.total(nearest) - budget + _sums(changes, choices)) / budget
    for best in np.lexsort((_sums(detours, choices), np.where(misses <= TOLERANCE, 0, misses))):
        moves = choices[best][choices[best] < len(layers)]
        rounded = nearest.copy()
        rounded[layers[moves]] = targets[moves]
        ends_stay = widths[0] != widths[-1] or rounded[0] == rounded[-1]
        moves_once = len(set(layers[moves])) == len(moves)
        if ends_stay and moves_once and not _exceeds(rounded, widths, cost.d_model).any():
            return rounded, float(misses[best]), float(misses.min())
    return nearest, float(misses[0]), float(misses.min())


def _exceeds(rounded: np.ndarray, widths: np.ndarray, d_model: int) -> np.ndarray:
    """Return (n_layers,), True where only rounding makes a layer wider than d_model and all layers before or after."""
    before = _outgrows(rounded, d_model) & ~_outgrows(widths, d_model)
    after = _outgrows(rounded[::-1], d_model) & ~_outgrows(widths[::-1], d_model)
    return before | after[::-1]


def _outgrows(widths: np.ndarray, d_model: int) -> np.ndarray:
    """Return (n_layers,), True where a layer is wider than d_model and all layers before it."""
    return widths > np.maximum.accumulate(np.append(d_model, widths[:-1]))


@lru_cache(maxsize=4)
def _choices(n: int) -> np.ndarray:
    """Return the subsets of n indices as rows, padded with n, smallest first: (n_choices, largest size).

    Returns all subsets, or all up to the size that MOST_CHOICES allows.
    """
    n_up_to_size = itertools.accumulate(math.comb(n, size) for size in range(n + 1))
    largest = sum(n_subsets <= MOST_CHOICES for n_subsets in n_up_to_size) - 1
    subsets = (itertools.combinations(range(n), size) for size in range(largest + 1))
    padded = (subset + (n,) * (largest - len(subset)) for subset in itertools.chain.from_iterable(subsets))
    return np.fromiter(padded, dtype=np.dtype((np.int16, largest)))


def _sums(values: np.ndarray, choices: np.ndarray) -> np.ndarray:
    """Return the sum of the values of each choice, (n_choices,)."""
    return np.append(values, 0)[choices].sum(axis=1)


def apportioned(mean: int, sizes: np.ndarray, key: str) -> list[int]:
    """Return (n_layers,) whole numbers with that mean, proportional to sizes of mean 1.

    Numbers are rounded down, and the remainder goes to the layers that lost most. key: in the recipe. Raises ValueError
    if a layer would get 0.
    """
    wanted = mean * sizes
    counts = np.floor(wanted + 1e-9).astype(int)
    n_left = mean * len(sizes) - int(counts.sum())
    counts[np.argsort(counts - wanted, kind="stable")[:n_left]] += 1
    if counts.min() < 1:
        layer = int(np.argmin(counts)) + 1
        raise ValueError(
            f"shape.{key}: leaves nothing for layer {layer} of {len(sizes)}, which would get {wanted.min():.2g} "
            f"where the mean is {mean}; give a flatter profile, or smaller and more of them"
        )
    return counts.tolist()
