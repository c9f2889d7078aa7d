"""Intervals of fitted laws against those of linear regression, savings, and how often both hold the truth."""

import numpy as np
import pytest
from scipy import stats

from widthwise.experiments.fitting import fit_law, savings
from widthwise.experiments.laws import LAWS, Law
from widthwise.experiments.scaling_points import CurveGroup, Point
from widthwise.records.scaling import Saving

POWER, IRREDUCIBLE, LOG_LINEAR = LAWS.values()
X = np.array([1.0, 3.0, 9.0, 27.0, 81.0])
TRUTH = np.array([3.0, 0.05])


def group(y: np.ndarray, x: np.ndarray = X, name: str = "g") -> CurveGroup:
    """y: (n_points,), or (n_points, n_seeds)."""
    rows = zip(x, np.reshape(y, (len(x), -1)))
    return CurveGroup(name, tuple(Point.of_seeds(f"m{i}", float(a), b.tolist()) for i, (a, b) in enumerate(rows)))


def noisy(seed: int, n_seeds: int = 1, size: float = 0.004) -> np.ndarray:
    luck = np.random.default_rng(seed).normal(size=(len(X), n_seeds))
    return POWER.y(TRUTH, X)[:, None] * np.exp(size * luck)


def saved(law: Law, new: CurveGroup, base: CurveGroup) -> dict[str, Saving]:
    return {each.kind: each for each in savings(fit_law(law, new), fit_law(law, base))}


def test_of_one_seed_each_the_interval_is_that_of_linear_regression() -> None:
    y = noisy(1)[:, 0]
    line = stats.linregress(np.log(X), np.log(y))
    t = stats.t.ppf(0.975, len(X) - 2)
    found = fit_law(POWER, group(y)).record().parameters
    assert found["b"].mean == pytest.approx(-line.slope)
    assert (found["b"].high - found["b"].low) / 2 == pytest.approx(t * line.stderr, rel=0.06)
    assert found["a"].high / found["a"].mean == pytest.approx(np.exp(t * line.intercept_stderr), rel=1e-3)
    assert found["a"].low * found["a"].high == pytest.approx(found["a"].mean ** 2)


def test_of_several_seeds_the_interval_is_that_of_the_luck_of_runs() -> None:
    """The slope's error where every run has the pooled spread of runs about the mean of their point."""
    y = noisy(2, n_seeds=3)
    logs = np.log(y)
    pooled = np.sqrt(np.square(logs - logs.mean(axis=1, keepdims=True)).sum() / (15 - 5))
    spread = np.square(np.log(X) - np.log(X).mean()).sum()
    expected = stats.t.ppf(0.975, 10) * pooled / np.sqrt(3 * spread)
    found = fit_law(POWER, group(y)).record().parameters["b"]
    assert (found.high - found.low) / 2 == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize("n_seeds", [1, 2])
def test_intervals_hold_the_truth_about_as_often_as_they_say(n_seeds: int) -> None:
    """There are 250 data sets, so that the binomial standard error is 1.4 percent."""
    hits = np.zeros(2)
    for seed in range(250):
        found = fit_law(POWER, group(noisy(seed, n_seeds)), seed).record().parameters
        hits += [each.low < true < each.high for each, true in zip(found.values(), TRUTH)]
    assert hits / 250 == pytest.approx(0.95, abs=0.045)


def test_points_on_the_curve_leave_no_doubt() -> None:
    fit = fit_law(IRREDUCIBLE, group(1.5 + 2 * X**-0.4)).record()
    assert fit.rms == pytest.approx(0, abs=1e-9)
    assert fit.r_squared == pytest.approx(1)
    for interval, true in zip(fit.parameters.values(), (1.5, 2, 0.4)):
        assert (interval.low, interval.high) == pytest.approx((true, true), rel=1e-4)


def test_a_band_is_as_wide_as_the_error_of_the_curve() -> None:
    """At the mean of ln x the error of a line is that of the mean."""
    y = noisy(7)[:, 0]
    band = fit_law(POWER, group(y)).record().band
    middle = len(band["x"]) // 2
    assert band["x"][middle] == pytest.approx(np.exp(np.log(X).mean()))
    line = stats.linregress(np.log(X), np.log(y))
    residuals = np.log(y) - line.intercept - line.slope * np.log(X)
    error = np.sqrt(np.square(residuals).sum() / (len(X) - 2) / len(X))
    half = np.log(band["high"][middle] / band["low"][middle]) / 2
    assert half == pytest.approx(stats.t.ppf(0.975, len(X) - 2) * error, rel=0.06)


def test_a_bend_is_told_from_the_luck_of_runs() -> None:
    """About one data set in twenty of runs on a power law looks bent; a bend of ten times their luck always does."""
    n_misses = sum(fit_law(POWER, group(noisy(seed, n_seeds=2))).has_lack_of_fit for seed in range(100))
    assert n_misses <= 12
    bent = noisy(0, n_seeds=2) * np.exp(0.04 * np.array([1, 0, -1, 0, 1]))[:, None]
    assert fit_law(POWER, group(bent)).has_lack_of_fit
    assert not fit_law(POWER, group(bent[:, 0])).has_lack_of_fit  # one seed each shows no luck


def test_a_shifted_curve_saves_its_shift() -> None:
    """The same loss at 0.7 of x, whatever the law."""
    y = {"power": 3 * X**-0.05, "power_irreducible": 1.5 + 2 * X**-0.4, "log_linear": 4 - 0.1 * np.log2(X)}
    for kind, law in LAWS.items():
        found = saved(law, group(y[kind], 0.7 * X), group(y[kind]))
        for each in found.values():
            assert each.ratio.mean == pytest.approx(0.7, rel=1e-4)
            assert each.at.y == pytest.approx(y[kind][-1])


def test_what_sizes_have_in_common_cancels() -> None:
    """Equal groups save nothing and leave no doubt, however far their points are from the curve."""
    same = group(noisy(3, size=0.05))
    curve = saved(POWER, same, same)["curve"]
    assert (curve.ratio.low, curve.ratio.mean, curve.ratio.high) == pytest.approx((1, 1, 1))


@pytest.mark.parametrize("n_points", [5, 4])
def test_intervals_of_savings_hold_the_truth_about_as_often_as_they_say(n_points: int) -> None:
    """With one layout and with two, independent noise in both; the binomial standard error is 1.4 percent."""
    true, hits = (2.95 / 3) ** (1 / 0.05), 0
    for seed in range(250):
        new = group(0.9**-0.05 * 2.95 / 3 * noisy(2 * seed)[:n_points], 0.9 * X[:n_points])
        ratio = saved(POWER, new, group(noisy(2 * seed + 1)))["curve"].ratio
        hits += ratio.low < true < ratio.high
    assert hits / 250 == pytest.approx(0.95, abs=0.045)


@pytest.mark.parametrize(("shift", "is_outside"), [(0.2, False), (0.01, True), (2.0, True)])
def test_a_loss_that_is_reached_outside_the_groups_own_points_says_so(shift: float, is_outside: bool) -> None:
    """The group of points 1 to 27 reaches the baseline's last loss at 81 times the shift."""
    found = saved(POWER, group(3 * (X[:4] / shift) ** -0.05, X[:4]), group(3 * X**-0.05))["curve"]
    assert found.ratio.mean == pytest.approx(shift)
    assert found.is_extrapolated == is_outside
