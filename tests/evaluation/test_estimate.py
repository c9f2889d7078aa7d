"""Standard errors and intervals against scipy, the bootstrap and the delta method, means over texts, and verdicts."""

import math

import numpy as np
import pytest
from scipy import stats

from widthwise.evaluation.estimate import (
    SampleEstimate,
    mean,
    mean_of_estimates,
    paired_mean,
    ratio,
    scores,
    seed_interval,
    text_means,
    verdict,
)
from widthwise.records.estimate import Estimate
from widthwise.records.evaluation import Score, Scores


def test_a_ratio_over_unequal_blocks_has_the_error_that_a_bootstrap_finds() -> None:
    random = np.random.default_rng(2)
    lengths = random.integers(20, 200, size=400).astype(float)
    sums = lengths * random.normal(3.0, 0.5, size=400)
    rows = random.integers(400, size=(4000, 400))
    resampled = sums[rows].sum(axis=1) / lengths[rows].sum(axis=1)
    found = ratio(sums, lengths)
    assert found.value == pytest.approx(sums.sum() / lengths.sum())
    assert found.stderr == pytest.approx(resampled.std(), rel=0.05)


def test_nothing_is_tested_where_nothing_differs_and_the_largest_perplexity_is_infinite() -> None:
    assert math.isnan(SampleEstimate(0.0, 0.0, 5).p_value())
    assert SampleEstimate(1000.0, 1.0).exponential().value == math.inf


def test_a_mean_of_means_has_the_error_and_the_interval_of_welch() -> None:
    random = np.random.default_rng(4)
    one, other = random.normal(size=7), 3 * random.normal(size=19)
    found = mean_of_estimates([mean(one), mean(other).scaled(-1)])
    expected = stats.ttest_ind(one, other, equal_var=False)
    assert found.value == pytest.approx((one.mean() - other.mean()) / 2)
    assert found.value / found.stderr == pytest.approx(expected.statistic)
    assert found.df == pytest.approx(expected.df)
    certain = mean_of_estimates([SampleEstimate(1.0, 0.3), SampleEstimate(5.0, 0.4)])
    assert certain == pytest.approx((3.0, math.hypot(0.3, 0.4) / 2, math.inf))


def test_few_blocks_have_no_error_and_none_no_ratio() -> None:
    found = scores({"one": mean(np.array([2.0])), "none": ratio(np.array([2.0]), np.array([0.0]))})
    assert found == {"one": Score(value=2.0, stderr=None), "none": Score(value=None, stderr=None)}
    for n_blocks, has_error in ((1, False), (9, False), (10, True)):
        found = ratio(np.arange(n_blocks) + 1.0, np.full(n_blocks, 4.0))
        assert found.value == pytest.approx((n_blocks + 1) / 8)
        assert math.isfinite(found.stderr) == has_error


LOSSES = [2.9, 3.8, 3.3, 3.6]


def _text(loss: float) -> Scores:
    perplexity = math.exp(loss)
    return {
        "nats_per_token": Score(value=loss, stderr=0.01),
        "token_perplexity": Score(value=perplexity, stderr=0.01 * perplexity),
        "bits_per_byte": Score(value=loss / 3, stderr=None),
    }


def test_the_mean_perplexity_is_above_the_perplexity_of_the_mean_loss() -> None:
    means = text_means(list(map(_text, LOSSES)))
    metrics = {name: score.to_data() for name, score in means.metrics.items()}
    assert metrics["mean_nats_per_token"] == pytest.approx({"value": 3.4, "stderr": 0.005})
    assert metrics["exp_mean_nats_per_token"] == pytest.approx(
        {"value": math.prod(map(math.exp, LOSSES)) ** 0.25, "stderr": 0.005 * math.exp(3.4)}
    )
    assert metrics["mean_token_perplexity"]["value"] == pytest.approx(sum(map(math.exp, LOSSES)) / 4)
    assert metrics["mean_token_perplexity"]["stderr"] == pytest.approx(0.01 / 4 * math.hypot(*map(math.exp, LOSSES)))
    assert metrics["mean_bits_per_byte"] == {"value": pytest.approx(3.4 / 3), "stderr": None}


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
