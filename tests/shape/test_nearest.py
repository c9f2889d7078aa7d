"""The size that is nearest to a budget."""

import math

import pytest

from widthwise.shape.adjusting import NEIGHBOURS, closest_size, nearest_size


@pytest.mark.parametrize("start", [1, 7, 41, 1000])
def test_a_rising_cost_is_met_by_the_nearest_size_from_any_start(start: int) -> None:
    for budget in (0.4, 1.0, 37.4, 37.6, 52.0, 100_000.3):
        assert nearest_size(lambda size, budget=budget: size - budget, start) == max(1, round(budget))


@pytest.mark.parametrize("start", [100, 165, 300])
def test_sizes_that_there_are_not_are_passed_over(start: int) -> None:
    """Costs rise in steps of 20 sizes, so that no neighbour leads to the nearest."""
    for budget in (50.0, 109.0, 131.0, 233.0, 288.0, 299.0, 450.0):

        def miss(size: int, budget: float = budget) -> float:
            return size // 20 * 20 - budget if 100 <= size <= 300 else math.nan

        assert abs(miss(nearest_size(miss, start))) == min(abs(miss(size)) for size in range(100, 301))


def test_no_neighbour_is_nearer_where_rounding_makes_costs_fall() -> None:
    def miss(size: int) -> float:
        return size - 501.3 + 3.1 * math.sin(2.7 * size)

    found = nearest_size(miss, 90)
    assert all(abs(miss(found)) <= abs(miss(found + step)) for step in range(-NEIGHBOURS, NEIGHBOURS + 1))


def test_a_cost_that_does_not_change_leaves_the_size() -> None:
    assert nearest_size(lambda size: -0.2, 57) == 57
    assert nearest_size(lambda size: 0.2, 57) == 57


def test_of_the_sizes_within_the_tolerance_the_closest_is_taken() -> None:
    misses = {30: 0.2, 31: 0.01, 32: 0.3, 33: 0.2, 34: -0.02, 35: 0.001}
    assert closest_size(misses.__getitem__, 33, range(30, 36), tolerance=0.02) == 34
    assert closest_size(misses.__getitem__, 33, range(30, 36), tolerance=0.0001) == 35
