"""Intervals against independent references, and the verdicts they allow."""

import numpy as np
import pytest
from scipy import stats

from widthwise.experiments.statistics import Estimate, change_between, paired_mean, seed_interval, verdict


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


class TestChange:
    BEFORE, AFTER = [0.11, 0.07, 0.19, 0.02], [0.31, 0.22, 0.41, 0.19]

    def test_of_seeds_alone_it_is_the_paired_t_test_or_that_of_welch(self) -> None:
        for after, are_paired, test in (
            (self.AFTER, True, stats.ttest_rel(self.AFTER, self.BEFORE)),
            ([*self.AFTER, 0.5], False, stats.ttest_ind([*self.AFTER, 0.5], self.BEFORE, equal_var=False)),
        ):
            expected = test.confidence_interval(0.9)
            change = change_between(seed_interval(self.BEFORE, 0.9), seed_interval(after, 0.9), are_paired, 0.9)
            assert (change.low, change.high) == pytest.approx((expected.low, expected.high))
            assert change.mean == pytest.approx(np.mean(after) - np.mean(self.BEFORE))
            assert change.per_seed == pytest.approx(np.subtract(after, self.BEFORE) if are_paired else [])

    def test_what_intervals_owe_to_the_text_beyond_their_seeds_stays_when_seeds_cancel(self) -> None:
        """Every seed changes by as much, so that the text alone is left: standard errors of 0.03 and 0.04."""
        t, mean, seeds = stats.t.ppf(0.975, 3), np.mean(self.BEFORE), stats.sem(self.BEFORE)
        before, after = (
            Estimate(
                mean=mean + by, low=mean + by - half, high=mean + by + half, per_seed=[x + by for x in self.BEFORE]
            )
            for by, half in ((0, t * np.hypot(seeds, 0.03)), (0.2, t * np.hypot(seeds, 0.04)))
        )
        change = change_between(before, after, are_paired=True)
        half = stats.norm.ppf(0.975) * 0.05
        assert (change.low, change.high) == pytest.approx((0.2 - half, 0.2 + half))

    def test_too_few_seeds_on_either_side_give_no_interval(self) -> None:
        few, enough = seed_interval([0.1, 0.2]), seed_interval(self.AFTER)
        for pair in ((few, enough), (enough, few), (few, few)):
            change = change_between(*pair, are_paired=False)
            assert (change.low, change.high) == (None, None)
            assert change.mean == pytest.approx(pair[1].mean - pair[0].mean)

    @pytest.mark.parametrize("are_paired", [True, False])
    def test_the_interval_covers_no_change_about_as_often_as_it_says(self, are_paired: bool) -> None:
        """Seeds and text do something to each scale; paired, they do in part the same to both."""
        random = np.random.default_rng(are_paired)
        n_trials, covered, shape = 200, 0, (3, 23)
        for _ in range(n_trials):
            shared, *own = (random.normal(size=(3, 1)) * 0.03 + random.normal(size=23) * 0.03 for _ in range(3))
            both = [paired_mean(shared * are_paired + each + random.normal(size=shape) * 0.02) for each in own]
            change = change_between(*both, are_paired)
            covered += change.low <= 0 <= change.high
        assert covered / n_trials > 0.9


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
