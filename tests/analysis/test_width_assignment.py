from itertools import product

import numpy as np
import pytest

from widthwise.analysis.dynamic_width.assignment import cheapest

FRACTIONS = np.array([0.25, 0.5, 1.0])


def mean_of(widths, shares):
    return sum(share * own.mean() for share, own in zip(shares, widths))


@pytest.mark.parametrize("budget", [0.25, 0.4, 0.7, 0.95])
def test_no_other_widths_of_at_most_that_mean_have_a_lower_loss(budget):
    losses = np.random.default_rng(1).normal(size=(3, 2, 3))
    shares = np.array([0.3, 0.7])
    found = cheapest(losses, FRACTIONS, shares, budget)
    assert mean_of(found, shares) <= budget + 1e-9

    def loss_of(picked):
        return sum(losses[level, *place] for place, level in zip(np.ndindex(2, 3), picked))

    ours = loss_of(np.searchsorted(FRACTIONS, found).ravel())
    for picked in product(range(3), repeat=6):
        if mean_of(FRACTIONS[np.array(picked)].reshape(2, 3), shares) <= mean_of(found, shares) + 1e-12:
            assert ours <= loss_of(picked) + 1e-9


def test_a_budget_that_nothing_needs_is_not_spent():
    losses = np.stack([np.full((1, 4), loss) for loss in (1.0, 2.0, 3.0)])
    assert (cheapest(losses, FRACTIONS, np.ones(1), budget=0.8) == 0.25).all()


def test_the_narrowest_budget_gives_every_token_the_narrowest_width():
    losses = np.stack([np.full((1, 5), loss) for loss in (3e6, 2.0, 1.0)])
    assert (cheapest(losses, FRACTIONS, np.ones(1), budget=0.25) == 0.25).all()
