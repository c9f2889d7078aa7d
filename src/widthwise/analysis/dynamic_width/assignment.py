"""Which token gets which width, where the loss at each width is known and the mean width is given."""

import numpy as np

ROUNDING = 1e-9
"""By how much a mean may exceed the budget."""
N_HALVINGS = 60


def cheapest(losses: np.ndarray, fractions: np.ndarray, shares: np.ndarray, budget: float) -> np.ndarray:
    """(n_layers, ...): a fraction for each token of each layer, of the lowest total loss for the mean that they have.

    losses: (n_fractions, n_layers, ...), of that fraction there; fractions: rising; shares: (n_layers,), what a layer
    counts for in the mean. Every fraction has one price, the lowest that keeps the mean within the budget, so the mean
    lies below it by what tokens jump at that price. A budget that nothing needs is not spent. It must be at least the
    lowest fraction.
    """
    shares = shares.reshape(-1, *[1] * (losses.ndim - 2))
    costs = fractions.reshape(-1, *[1] * (losses.ndim - 1)) * shares

    def at(price: float) -> np.ndarray:
        return fractions[(losses + price * costs).argmin(axis=0)]

    def is_within(price: float) -> bool:
        return float((at(price) * shares).mean(axis=tuple(range(1, losses.ndim - 1))).sum()) <= budget + ROUNDING

    assert budget >= fractions[0] - ROUNDING, "no width is narrow enough"
    if is_within(0.0):
        return at(0.0)
    low, high = 0.0, 1.0
    while not is_within(high):
        low, high = high, 2 * high
    for _ in range(N_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_within(middle) else (middle, high)
    return at(high)
