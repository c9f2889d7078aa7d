"""Rows are divided among sources by weight, so that no source is ever far from its share."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from widthwise.data.mixture import MOST_OFF, divided

few = settings(max_examples=50)
weightings = st.lists(st.integers(1, 10**6), min_size=1, max_size=12).map(
    lambda weights: {f"s{index}": weight for index, weight in enumerate(weights)}
)
row_numbers = st.integers(0, 3000) | st.integers(0, 10**15)


def farthest_off(weights, counts) -> Fraction:
    n_rows, total = sum(counts.values()), sum(weights.values())
    return max(abs(counts[name] - Fraction(n_rows * weights[name], total)) for name in weights)


@few
@given(weightings, row_numbers)
def test_no_source_is_ever_far_from_its_share_and_of_two_none_by_more_than_half_a_row(weights, n_rows):
    for own, bound in ((weights, Fraction(str(MOST_OFF))), (dict([*weights.items()][:2]), Fraction(1, 2))):
        counts = divided(own).counts(n_rows)
        assert sum(counts.values()) == n_rows
        assert farthest_off(own, counts) <= bound


@pytest.mark.parametrize("n_sources", [3, 21, 60])
def test_the_bound_holds_for_the_weights_that_come_nearest_to_it(n_sources):
    """Fibonacci numbers make the deepest tree."""
    fibonacci = [1, 1]
    while len(fibonacci) < n_sources:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    weights = {f"s{index}": weight for index, weight in enumerate(fibonacci)}
    division = divided(weights)
    assert all(farthest_off(weights, division.counts(n)) < Fraction(str(MOST_OFF)) for n in range(0, 20_000, 7))


@few
@given(weightings, row_numbers, st.integers(1, 40))
def test_a_row_has_the_place_that_the_counts_before_it_say(weights, first, n_rows):
    division = divided(weights)
    counts = Counter(division.counts(first))
    for row in range(first, first + n_rows):
        name, before = division.place(row)
        assert before == counts[name]
        counts[name] += 1
    assert counts == division.counts(first + n_rows)


@few
@given(weightings)
def test_after_as_many_rows_as_the_weights_add_up_to_every_share_is_exact(weights):
    total = sum(weights.values())
    assert divided(weights).counts(10**6 * total) == {name: 10**6 * weight for name, weight in weights.items()}


@few
@given(weightings, row_numbers)
def test_neither_order_nor_a_common_factor_makes_a_difference(weights, row):
    backwards = {name: 6 * weight for name, weight in reversed(weights.items())}
    assert divided(backwards).place(row) == divided(weights).place(row)


@few
@given(weightings, st.integers(0, 50))
def test_rows_last_until_a_source_would_pass_its_limit(weights, most):
    limits = {name: most + index for index, name in enumerate(weights)}
    division = divided(weights)
    n_rows = division.n_rows_within(limits)
    assert all(count <= limits[name] for name, count in division.counts(n_rows).items())
    assert any(count > limits[name] for name, count in division.counts(n_rows + 1).items())
