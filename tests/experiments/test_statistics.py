"""Intervals against independent references, and the verdicts they allow."""

import numpy as np
import pytest
from scipy import stats

from widthwise.experiments.statistics import Estimate, paired_difference, seed_interval, verdict


def test_seed_interval_is_students_t() -> None:
    values = [3.11, 3.07, 3.19, 3.02, 3.15]
    expected = stats.ttest_1samp(values, popmean=0.0).confidence_interval(0.9)
    estimate = seed_interval(values, confidence=0.9)
    assert (estimate.low, estimate.high) == pytest.approx((expected.low, expected.high), rel=1e-12)
    assert estimate.mean == pytest.approx(np.mean(values))


def test_one_seed_has_no_interval() -> None:
    estimate = seed_interval([3.0])
    assert estimate.mean == 3.0
    assert (estimate.low, estimate.high) == (None, None)


def test_what_both_share_cancels() -> None:
    random = np.random.default_rng(0)
    shared = random.normal(size=(3, 41)) * 10
    change = random.normal(size=(3, 41)) * 0.01
    alone = paired_difference(change, np.zeros_like(change))
    paired = paired_difference(shared + change, shared)
    assert (paired.mean, paired.low, paired.high) == pytest.approx((alone.mean, alone.low, alone.high), abs=1e-12)


def test_a_constant_difference_has_no_width() -> None:
    baseline = np.random.default_rng(1).normal(size=(4, 17))
    difference = paired_difference(baseline - 0.25, baseline)
    assert (difference.low, difference.mean, difference.high) == pytest.approx((-0.25, -0.25, -0.25))
    assert difference.per_seed == pytest.approx([-0.25] * 4)


def test_interval_turns_with_the_sign() -> None:
    random = np.random.default_rng(2)
    variant, baseline = random.normal(size=(2, 5, 29))
    forward, backward = paired_difference(variant, baseline), paired_difference(baseline, variant)
    assert (forward.low, forward.high) == pytest.approx((-backward.high, -backward.low), rel=0.02)


def test_of_one_window_the_interval_is_students_t_over_seeds() -> None:
    """But for the 1.1 percent by which 4000 draws miss a standard deviation, three times over."""
    differences = [0.2, -0.1, 0.4]
    paired, expected = paired_difference(np.array(differences)[:, None], np.zeros((3, 1))), seed_interval(differences)
    assert paired.high - paired.low == pytest.approx(expected.high - expected.low, rel=0.035)


@pytest.mark.parametrize("n_seeds", [2, 3, 5])
def test_interval_covers_the_truth_about_as_often_as_it_says(n_seeds: int) -> None:
    """Differences with a seed effect and window noise: a bootstrap over windows alone would cover far less."""
    random = np.random.default_rng(n_seeds)
    n_trials, covered = 200, 0
    for _ in range(n_trials):
        differences = random.normal(size=(n_seeds, 1)) * 0.02 + random.normal(size=(n_seeds, 23)) * 0.03
        estimate = paired_difference(differences, np.zeros_like(differences))
        covered += estimate.low <= 0 <= estimate.high
    assert covered / n_trials > 0.9  # 0.95 less three standard errors of 200 trials


@pytest.mark.parametrize(
    ("low", "high", "n_seeds", "expected"),
    [
        (-0.2, -0.1, 3, "better"),
        (0.1, 0.2, 3, "worse"),
        (-0.1, 0.1, 3, "cannot tell"),
        (-0.2, 0.0, 5, "cannot tell"),
        (-0.01, 0.009, 5, "tie"),
        (-0.011, 0.001, 5, "cannot tell"),
        (-0.009, -0.001, 5, "better"),
        (-0.2, -0.1, 2, "no verdict"),
        (-0.2, -0.1, 1, "no verdict"),
    ],
)
def test_verdict(low: float, high: float, n_seeds: int, expected: str) -> None:
    assert verdict(Estimate(mean=(low + high) / 2, low=low, high=high, per_seed=[0.0] * n_seeds)) == expected
