"""From continuous widths to multiples of a quantum."""

import itertools
import math
from functools import lru_cache

import numpy as np

from widthwise.config_io import UserError
from widthwise.shape.schedule import WidthCost

TOLERANCE = 0.0005
"""The miss of the budget, as a fraction of it, below which balanced rounding looks no further."""
FAR = 0.005
"""The miss above which balanced rounding lets layers go beyond the two nearest multiples; comparisons allow 0.01."""
MOST_CHOICES = 200_000


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


def round_whole(widths: np.ndarray, quantum: int, d_model: int, least_quantum: int = 1) -> np.ndarray:
    """(n_layers,) widths -> those of `round_nearest`, but down where up would pass an end of the stream of d_model.

    No layer then reads coordinates that nothing wrote, or writes some that nothing reads, unless its real width does.
    """
    nearest = round_nearest(widths, quantum, least_quantum)
    below = np.floor(widths / quantum).astype(np.int64) * quantum
    return np.where((below > 0) & _strays(nearest, widths, d_model), below, nearest)


def round_balanced(
    widths: np.ndarray, quantum: int, cost: WidthCost, budget: float, least_quantum: int = 1
) -> np.ndarray:
    """(n_layers,) widths -> multiples of `quantum` as integers that together cost `budget` to within TOLERANCE.

    Each layer goes up or down to the next multiple, but none outgrows the stream where its width does not, and equal
    ends stay equal. Among the choices within TOLERANCE the one with the least summed distance from `widths` wins; where
    there is none, the one with the smallest miss, and where that is above FAR because of the ends, layers may go a
    multiple further. Every choice is examined for up to 17 moves, and for more those of few. Raises what
    `round_nearest` raises.
    """
    nearest = round_whole(widths, quantum, cost.d_model, least_quantum)
    second = nearest + quantum * np.sign(widths - nearest).astype(np.int64)
    rounded, miss, least = _best(nearest, second[None], widths, cost, budget)
    if miss > max(FAR, least):
        rounded, _, _ = _best(nearest, np.stack([second, 2 * nearest - second]), widths, cost, budget)
    return rounded


def _best(
    nearest: np.ndarray, others: np.ndarray, widths: np.ndarray, cost: WidthCost, budget: float
) -> tuple[np.ndarray, float, float]:
    """The best choice of `round_balanced`, its miss, and the least miss of all choices, of refused ones too.

    others: (n, n_layers) what each layer may have instead of the nearest multiple.
    """
    which, layers = np.nonzero((others != nearest) & (others > 0))
    if not layers.size:
        return nearest, 0.0, 0.0
    targets, costs = (
        others[which, layers],
        np.stack([cost.per_layer(np.maximum(alternative, 1)) for alternative in others]),
    )
    changes = costs[which, layers] - cost.per_layer(nearest)[layers]
    detours = np.abs(targets - widths[layers]) - np.abs(nearest - widths)[layers]
    choices = _choices(len(layers))
    misses = np.abs(cost.total(nearest) - budget + _sums(changes, choices)) / budget
    for best in np.lexsort((_sums(detours, choices), np.where(misses <= TOLERANCE, 0, misses))):
        moves = choices[best][choices[best] < len(layers)]
        rounded = nearest.copy()
        rounded[layers[moves]] = targets[moves]
        ends_stay = widths[0] != widths[-1] or rounded[0] == rounded[-1]
        moves_once = len(set(layers[moves])) == len(moves)
        if ends_stay and moves_once and not _strays(rounded, widths, cost.d_model).any():
            return rounded, float(misses[best]), float(misses.min())
    return nearest, float(misses[0]), float(misses.min())


def _strays(rounded: np.ndarray, widths: np.ndarray, d_model: int) -> np.ndarray:
    """(n_layers,) whether rounding alone makes a layer wider than d_model and all layers before it, or all after it."""
    return np.logical_or(
        _outgrows(rounded, d_model) & ~_outgrows(widths, d_model),
        (_outgrows(rounded[::-1], d_model) & ~_outgrows(widths[::-1], d_model))[::-1],
    )


def _outgrows(widths: np.ndarray, d_model: int) -> np.ndarray:
    """(n_layers,) whether a layer is wider than d_model and all layers before it."""
    return widths > np.maximum.accumulate(np.append(d_model, widths[:-1]))


# Enumerated rather than left to scipy.optimize.milp, whose solver prints on standard output (in the middle of a --json
# answer), may take seconds, and returns any one of several equally good choices.
@lru_cache(maxsize=4)
def _choices(n: int) -> np.ndarray:
    """(choices, most things): the subsets of n things by their indices, filled up with n; the smaller ones first.

    All of them, or those of the sizes that MOST_CHOICES leaves room for.
    """
    counts = itertools.accumulate(math.comb(n, size) for size in range(n + 1))
    largest = sum(count <= MOST_CHOICES for count in counts) - 1
    subsets = (itertools.combinations(range(n), size) for size in range(largest + 1))
    padded = (subset + (n,) * (largest - len(subset)) for subset in itertools.chain.from_iterable(subsets))
    return np.fromiter(padded, dtype=np.dtype((np.int16, largest)))


def _sums(values: np.ndarray, choices: np.ndarray) -> np.ndarray:
    """(choices,): the sum of each choice's values."""
    return np.append(values, 0)[choices].sum(axis=1)
