"""Intervals against independent references, and the verdicts they allow."""

import numpy as np
import pytest
from scipy import stats

from widthwise.experiments.statistics import Estimate, paired_difference, seed_interval, verdict


def test_seed_interval_is_students_t_and_one_seed_has_none() -> None:
    values = [3.11, 3.07, 3.19, 3.02, 3.15]
    expected = stats.ttest_1samp(values, popmean=0.0).confidence_interval(0.9)
    estimate = seed_interval(values, confidence=0.9)
    assert (estimate.low, estimate.high) == pytest.approx((expected.low, expected.high), rel=1e-12)
    assert estimate.mean == pytest.approx(np.mean(values))
    alone = seed_interval([3.0])
    assert (alone.mean, alone.low, alone.high) == (3.0, None, None)


def test_what_both_share_cancels() -> None:
    random = np.random.default_rng(0)
    shared = random.normal(size=(3, 41)) * 10
    change = random.normal(size=(3, 41)) * 0.01
    alone = paired_difference(change, np.zeros_like(change))
    paired = paired_difference(shared + change, shared)
    assert (paired.mean, paired.low, paired.high) == pytest.approx((alone.mean, alone.low, alone.high), abs=1e-12)


def test_of_one_window_the_interval_is_students_t_over_seeds_and_of_equal_seeds_it_is_of_the_windows() -> None:
    """But for the 1.1 percent by which 4000 draws miss a standard deviation, three times over."""
    differences = [0.2, -0.1, 0.4]
    paired, expected = paired_difference(np.array(differences)[:, None], np.zeros((3, 1))), seed_interval(differences)
    assert paired.high - paired.low == pytest.approx(expected.high - expected.low, rel=0.035)
    windows = np.random.default_rng(6).normal(size=23)
    equal = paired_difference(np.tile(windows, (3, 1)), np.zeros((3, 23)))
    error = windows.std() / 23**0.5 * (3 / 2) ** 0.5  # widened for three seeds
    assert (equal.high - equal.low) / 2 == pytest.approx(stats.t.ppf(0.975, 2) * error, rel=0.035)


@pytest.mark.parametrize("n_seeds", [2, 5])
def test_interval_covers_the_truth_about_as_often_as_it_says(n_seeds: int) -> None:
    """Differences with a seed effect and window noise: a bootstrap over windows alone would cover far less."""
    random = np.random.default_rng(n_seeds)
    n_trials, covered = 200, 0
    for _ in range(n_trials):
        differences = random.normal(size=(n_seeds, 1)) * 0.02 + random.normal(size=(n_seeds, 23)) * 0.03
        estimate = paired_difference(differences, np.zeros_like(differences))
        covered += estimate.low <= 0 <= estimate.high
    assert covered / n_trials > 0.9  # 0.95 less three standard errors of 200 trials


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
