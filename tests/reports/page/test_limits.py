"""The ends of an axis of means with intervals."""

import pytest

from widthwise.records.estimate import Estimate
from widthwise.reports.page.plots import limits_of


def estimate(mean: float, half_width: float) -> Estimate:
    return Estimate(mean=mean, low=mean - half_width, high=mean + half_width)


def test_short_intervals_are_shown_whole() -> None:
    low, high = limits_of([estimate(1.0, 0.25), estimate(2.0, 0.5)])
    assert low < 0.75
    assert high > 2.5


def test_long_ones_run_off_so_that_means_can_be_told_apart() -> None:
    """At least a quarter of the axis lies between the lowest and the highest mean."""
    low, high = limits_of([estimate(1.0, 100.0), estimate(2.0, 50.0)])
    assert low < 1.0 < 2.0 < high
    assert (2.0 - 1.0) / (high - low) > 0.25


def test_marks_are_within() -> None:
    low, high = limits_of([estimate(-1.0, 0.0)], [0.0])
    assert low < -1.0
    assert high > 0.0


@pytest.mark.parametrize("estimates", [[estimate(1.0, 0.0)], [Estimate(mean=None), Estimate(mean=1.0)]])
def test_one_mean_without_an_interval_has_room(estimates: list[Estimate]) -> None:
    low, high = limits_of(estimates)
    assert low < 1.0 < high
