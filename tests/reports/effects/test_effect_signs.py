"""When an effect changes sign, and when one cannot tell."""

import itertools

import pytest
from fake_effects import difference

from widthwise.records.estimate import FEWEST_SEEDS, Estimate
from widthwise.reports.effects.signs import Signs, sign, signs


def estimate(mean: float, half_width: float = 0.01, n_seeds: int = FEWEST_SEEDS) -> Estimate:
    return Estimate.model_validate(difference(mean, half_width, n_seeds))


@pytest.mark.parametrize(
    ("mean", "expected"), [(-0.02, -1), (0.02, 1), (0.0, 0), (0.009, 0), (-0.009, 0), (0.01, 0), (-0.01, 0)]
)
def test_a_sign_takes_an_interval_that_excludes_0(mean: float, expected: int) -> None:
    assert sign(estimate(mean)) == expected


def test_a_sign_takes_as_many_seeds_as_a_verdict() -> None:
    assert sign(estimate(-0.5, n_seeds=FEWEST_SEEDS - 1)) == 0
    assert sign(Estimate(mean=-0.5, per_seed=[-0.5] * FEWEST_SEEDS)) == 0


LOWER, HIGHER, OPEN = -0.05, 0.05, 0.005


@pytest.mark.parametrize(
    ("means", "expected"),
    [
        ([LOWER, LOWER], "same sign everywhere"),
        ([HIGHER, HIGHER, HIGHER], "same sign everywhere"),
        ([LOWER, HIGHER], "changes sign"),
        ([LOWER, OPEN, HIGHER], "changes sign"),
        ([LOWER, OPEN], "cannot tell"),
        ([HIGHER, HIGHER, -OPEN], "cannot tell"),
        ([OPEN, -OPEN], "cannot tell"),
        ([LOWER], "cannot tell"),
        ([], "cannot tell"),
    ],
)
def test_the_order_of_the_comparisons_does_not_matter(means: list[float], expected: Signs) -> None:
    for order in itertools.permutations(means):
        assert signs([estimate(mean) for mean in order]) == expected


def test_a_change_that_two_seeds_show_is_none() -> None:
    assert signs([estimate(LOWER), estimate(HIGHER, n_seeds=2)]) == "cannot tell"


def test_means_on_both_sides_are_no_change_where_intervals_are_wide() -> None:
    assert signs([estimate(LOWER, 0.06), estimate(HIGHER, 0.06)]) == "cannot tell"
