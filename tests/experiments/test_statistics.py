"""Intervals against independent references, and the verdicts they allow."""

import numpy as np
import pytest
from scipy import stats

from widthwise.experiments.statistics import Estimate, paired_mean, seed_interval, verdict


def test_seed_interval_is_students_t_and_one_seed_has_none() -> None:
    values = [3.11, 3.07, 3.19, 3.02, 3.15]
    expected = stats.ttest_1samp(values, popmean=0.0).confidence_interval(0.9)
    estimate = seed_interval(values, confidence=0.9)
    assert (estimate.low, estimate.high) == pytest.approx((expected.low, expected.high), rel=1e-12)
    assert estimate.mean == pytest.approx(np.mean(values))
    alone = seed_interval([3.0])
    assert (alone.mean, alone.low, alone.high) == (3.0, None, None)


def test_of_one_window_the_interval_is_students_t_over_seeds_and_of_equal_seeds_it_is_that_over_windows() -> None:
    differences, windows = [0.2, -0.1, 0.4], np.random.default_rng(6).normal(size=23)
    for found, values in (
        (paired_mean(np.array(differences)[:, None]), differences),
        (paired_mean(np.tile(windows, (3, 1))), windows),
    ):
        expected = stats.ttest_1samp(values, popmean=0.0).confidence_interval(0.95)
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    alone = paired_mean(windows[None])
    assert (alone.mean, alone.low, alone.high) == (pytest.approx(windows.mean()), None, None)
    assert paired_mean(np.full((3, 5), 0.25)).high == 0.25


@pytest.mark.parametrize("n_seeds", [3, 5])
@pytest.mark.parametrize("parts", [(1, 0, 0), (1, 0.5, 0.5), (1, 1, 0), (0, 1, 1)])
def test_an_interval_covers_the_truth_in_94_to_97_percent(n_seeds: int, parts: tuple[float, float, float]) -> None:
    """parts: standard errors of the mean due to seeds, to text, and to the noise of each window of each seed."""
    random = np.random.default_rng(n_seeds + 20)
    n_trials, n_windows, covered = 2000, 23, 0
    for _ in range(n_trials):
        shapes = ((n_seeds, 1), (1, n_windows), (n_seeds, n_windows))
        terms = (part * np.prod(shape) ** 0.5 * random.normal(size=shape) for part, shape in zip(parts, shapes))
        estimate = paired_mean(sum(terms, np.zeros(shapes[-1])))
        covered += estimate.low <= 0 <= estimate.high
    assert 0.94 <= covered / n_trials <= 0.97


def test_verdict() -> None:
    for low, high, n_seeds, expected in (
        (-0.2, -0.1, 3, "better"),
        (0.1, 0.2, 3, "worse"),
        (-0.1, 0.1, 3, "cannot tell"),
        (-0.2, 0.0, 5, "cannot tell"),
        (-0.01, 0.009, 5, "tie"),
        (-0.011, 0.001, 5, "cannot tell"),
        (-0.009, -0.001, 5, "better"),
        (-0.2, -0.1, 2, "no verdict"),
    ):
        found = verdict(Estimate(mean=(low + high) / 2, low=low, high=high, per_seed=[0.0] * n_seeds))
        assert found == expected, (low, high)
