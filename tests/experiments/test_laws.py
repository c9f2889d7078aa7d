"""Laws against independent least squares; intervals of fits and savings hold the truth as often as they say."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import least_squares

from widthwise.experiments.fitting import LACK_OF_FIT, fit_law, savings
from widthwise.experiments.laws import LAWS, Law
from widthwise.experiments.scaling_points import CurveGroup, SeededPoint
from widthwise.records.scaling import Saving

POWER, IRREDUCIBLE, LOG_LINEAR = LAWS.values()
X = np.array([0.3, 1.1, 4.5, 17.0, 90.0])
PARAMETERS = {"power": [3.1, 0.05], "power_irreducible": [1.7, 1.4, 0.31], "log_linear": [-0.11, 3.2]}


def values(law: Law) -> np.ndarray:
    return np.array(PARAMETERS[law.kind])


def noisy(law: Law, seed: int, size: float = 0.02) -> np.ndarray:
    return law.y(values(law), X) * np.exp(size * np.random.default_rng(seed).normal(size=len(X)))


@settings(max_examples=30, deadline=None)
@given(
    e=st.floats(0.5, 4),
    a=st.floats(0.3, 5),
    b=st.floats(0.05, 1.5),
    unit=st.one_of(st.floats(1e-3, 1e9), st.sampled_from([1e-31, 1e31, 1e60])),
)
def test_an_irreducible_loss_is_recovered_exactly(e: float, a: float, b: float, unit: float) -> None:
    """Whatever the unit of x: the same curve has a times unit^b."""
    y = e + a * X**-b
    with np.errstate(all="raise", under="ignore"):
        assert IRREDUCIBLE.fit(X * unit, y) == pytest.approx([e, a * unit**b, b], rel=1e-5)


def test_lines_are_those_of_scipy() -> None:
    y = noisy(POWER, 7)
    line = stats.linregress(np.log(X), np.log(y))
    assert POWER.fit(X, y) == pytest.approx([np.exp(line.intercept), -line.slope])
    line = stats.linregress(np.log2(X), y)
    assert LOG_LINEAR.fit(X, y) == pytest.approx([line.slope, line.intercept])


@pytest.mark.parametrize("seed", range(2))
def test_no_start_leads_below_the_fit_of_an_irreducible_loss(seed: int) -> None:
    y = noisy(IRREDUCIBLE, seed, size=0.01)

    def residuals(p: np.ndarray) -> np.ndarray:
        return p[0] + p[1] * X ** -p[2] - y

    bounds = ([0, 0, 0.005], [np.inf, np.inf, 10])
    starts = [(e, a, b) for e in (0.1, 2.0) for a in (0.5, 3.0) for b in (0.05, 0.3, 2.0)]
    best = min(2 * least_squares(residuals, start, bounds=bounds, xtol=1e-12).cost for start in starts)
    found = np.square(residuals(IRREDUCIBLE.fit(X, y))).sum()
    assert found <= best * (1 + 1e-6)
    assert found == pytest.approx(best, rel=1e-3)


def test_points_without_a_bend_determine_no_irreducible_loss() -> None:
    """A line in y over ln x bends less than any positive e allows."""
    fit = IRREDUCIBLE.fit(X, 4 - 0.5 * np.log(X))
    assert fit[0] == 0
    assert "e is at its bound" in (IRREDUCIBLE.warning(fit) or "")
    assert IRREDUCIBLE.warning(IRREDUCIBLE.fit(X, noisy(IRREDUCIBLE, 0, size=1e-4))) is None


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_a_point_left_out_is_met_by_the_curve_through_the_others_and_x_is_where_the_curve_reaches_y(law: Law) -> None:
    assert law.x(values(law), law.y(values(law), X)) == pytest.approx(X)
    y = noisy(law, 5)
    x = np.append(X, 300.0)
    y = np.append(y, law.y(values(law), np.array(300.0)))
    errors = law.leave_one_out_errors(x, y)
    for i, others in enumerate(~np.eye(len(x), dtype=bool)):
        assert errors[i] == pytest.approx(y[i] - law.y(law.fit(x[others], y[others]), x[i : i + 1])[0])


SIZES = np.array([1.0, 3.0, 9.0, 27.0, 81.0])
TRUTH = np.array([3.0, 0.05])


def group(y: np.ndarray, x: np.ndarray = SIZES, name: str = "g") -> CurveGroup:
    """y: (n_points,), or (n_points, n_seeds)."""
    rows = zip(x, np.reshape(y, (len(x), -1)))
    return CurveGroup(name, tuple(SeededPoint.of_seeds(f"m{i}", float(a), b.tolist()) for i, (a, b) in enumerate(rows)))


def noisy_runs(seed: int, n_seeds: int = 1, size: float = 0.004) -> np.ndarray:
    luck = np.random.default_rng(seed).normal(size=(len(SIZES), n_seeds))
    return POWER.y(TRUTH, SIZES)[:, None] * np.exp(size * luck)


def saved(law: Law, new: CurveGroup, base: CurveGroup) -> list[Saving]:
    """Curve against curve, and point against curve."""
    return list(savings(fit_law(law, new), fit_law(law, base)))


def test_of_one_seed_each_the_interval_is_that_of_linear_regression() -> None:
    y = noisy_runs(1)[:, 0]
    line = stats.linregress(np.log(SIZES), np.log(y))
    t = stats.t.ppf(0.975, len(SIZES) - 2)
    a, b = fit_law(POWER, group(y)).record().parameters.values()
    assert b.mean == pytest.approx(-line.slope)
    assert (b.high - b.low) / 2 == pytest.approx(t * line.stderr, rel=0.06)
    assert a.high / a.mean == pytest.approx(np.exp(t * line.intercept_stderr), rel=1e-3)
    assert a.low * a.high == pytest.approx(a.mean**2)


def test_of_several_seeds_the_interval_is_that_of_the_luck_of_runs() -> None:
    """The slope's error where every run has the pooled spread of runs about the mean of their point."""
    y = noisy_runs(2, n_seeds=3)
    logs = np.log(y)
    pooled = np.sqrt(np.square(logs - logs.mean(axis=1, keepdims=True)).sum() / (15 - 5))
    spread = np.square(np.log(SIZES) - np.log(SIZES).mean()).sum()
    expected = stats.t.ppf(0.975, 10) * pooled / np.sqrt(3 * spread)
    found = fit_law(POWER, group(y)).record().parameters["b"]
    assert (found.high - found.low) / 2 == pytest.approx(expected, rel=0.06)


def test_a_band_is_as_wide_as_the_error_of_the_curve() -> None:
    """At the mean of ln x the error of a line is that of the mean."""
    y = noisy_runs(7)[:, 0]
    band = fit_law(POWER, group(y)).record().band
    middle = len(band.x) // 2
    assert (band.x[0], band.x[middle], band.x[-1]) == pytest.approx((1, np.exp(np.log(SIZES).mean()), 81))
    line = stats.linregress(np.log(SIZES), np.log(y))
    error = line.stderr * np.log(SIZES).std()
    half = np.log(band.high[middle] / band.low[middle]) / 2
    assert half == pytest.approx(stats.t.ppf(0.975, len(SIZES) - 2) * error, rel=0.06)


def test_a_bend_is_told_from_the_luck_of_runs() -> None:
    """About one data set in twenty of runs on a power law looks bent; a bend of ten times their luck always does."""
    n_misses = sum(fit_law(POWER, group(noisy_runs(seed, n_seeds=2))).has_lack_of_fit for seed in range(100))
    assert n_misses <= 12
    bent = noisy_runs(0, n_seeds=2) * np.exp(0.04 * np.array([1, 0, -1, 0, 1]))[:, None]
    assert fit_law(POWER, group(bent)).has_lack_of_fit
    assert fit_law(POWER, group(bent)).record().reason == LACK_OF_FIT  # which `fit` prints
    assert not fit_law(POWER, group(bent[:, 0])).has_lack_of_fit  # one seed each shows no luck


def test_a_shifted_curve_saves_its_shift() -> None:
    """The same loss at 0.7 of x, whatever the law."""
    y = {"power": 3 * SIZES**-0.05, "power_irreducible": 1.5 + 2 * SIZES**-0.4, "log_linear": 4 - 0.1 * np.log2(SIZES)}
    for kind, law in LAWS.items():
        for saving in saved(law, group(y[kind], 0.7 * SIZES), group(y[kind])):
            assert saving.ratio.mean == pytest.approx(0.7, rel=1e-4)
            assert saving.at.y == pytest.approx(y[kind][-1])


def test_what_sizes_have_in_common_cancels() -> None:
    """Equal groups save nothing and leave no doubt, however far their points are from the curve."""
    same = group(noisy_runs(3, size=0.05))
    ratio = saved(POWER, same, same)[0].ratio
    assert (ratio.low, ratio.mean, ratio.high) == pytest.approx((1, 1, 1))


@pytest.mark.parametrize("n_points", [5, 4])
def test_intervals_of_savings_hold_the_truth_about_as_often_as_they_say(n_points: int) -> None:
    """With one layout and with two, independent noise in both; the binomial standard error is 1.4 percent."""
    true, hits = (2.95 / 3) ** (1 / 0.05), 0
    for seed in range(250):
        new = group(0.9**-0.05 * 2.95 / 3 * noisy_runs(2 * seed)[:n_points], 0.9 * SIZES[:n_points])
        ratio = saved(POWER, new, group(noisy_runs(2 * seed + 1)))[0].ratio
        hits += ratio.low < true < ratio.high
    assert hits / 250 == pytest.approx(0.95, abs=0.045)


@pytest.mark.parametrize(("shift", "is_outside"), [(0.2, False), (0.01, True), (2.0, True)])
def test_a_loss_that_is_reached_outside_the_groups_own_points_says_so(shift: float, is_outside: bool) -> None:
    """The group of points 1 to 27 reaches the baseline's last loss at 81 times the shift."""
    curve, _ = saved(POWER, group(3 * (SIZES[:4] / shift) ** -0.05, SIZES[:4]), group(3 * SIZES**-0.05))
    assert (curve.ratio.mean, curve.is_extrapolated) == (pytest.approx(shift), is_outside)
