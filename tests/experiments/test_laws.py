"""The laws: exact on data that follow them, and elsewhere as good as independent least squares."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import least_squares

from widthwise.experiments.scaling.laws import LAWS, IrreduciblePowerLaw, Law, leave_one_out_errors
from widthwise.experiments.trend import fit_trend

POWER, IRREDUCIBLE, LOG_LINEAR = LAWS.values()
X = np.array([0.3, 1.1, 4.5, 17.0, 90.0])
PARAMETERS = {"power": [3.1, 0.05], "power_irreducible": [1.7, 1.4, 0.31], "log_linear": [-0.11, 3.2]}

each_law = pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)


def values(law: Law) -> np.ndarray:
    return np.array(PARAMETERS[law.kind])


def noisy(law: Law, seed: int, size: float = 0.02) -> np.ndarray:
    return law.y(values(law), X) * np.exp(size * np.random.default_rng(seed).normal(size=len(X)))


@given(a=st.floats(0.01, 1e3), b=st.floats(-0.5, 2), unit=st.floats(1e-6, 1e12))
def test_a_power_law_is_recovered_exactly(a: float, b: float, unit: float) -> None:
    expected = np.array([a, b])
    assert POWER.fit(X * unit, POWER.y(expected, X * unit)) == pytest.approx(expected, rel=1e-7, abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(e=st.floats(0.5, 4), a=st.floats(0.3, 5), b=st.floats(0.05, 1.5), unit=st.floats(1e-3, 1e9))
def test_an_irreducible_loss_is_recovered_exactly(e: float, a: float, b: float, unit: float) -> None:
    """Whatever the unit of x: the same curve has a times unit^b."""
    y = e + a * X**-b
    assert IRREDUCIBLE.fit(X * unit, y) == pytest.approx([e, a * unit**b, b], rel=1e-5)


@given(slope=st.floats(-2, 2), intercept=st.floats(-5, 5))
def test_a_log_linear_law_is_recovered_exactly(slope: float, intercept: float) -> None:
    expected = np.array([slope, intercept])
    assert LOG_LINEAR.fit(X, LOG_LINEAR.y(expected, X)) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(seed=st.integers(0, 100))
def test_lines_are_those_of_scipy(seed: int) -> None:
    y = noisy(POWER, seed)
    line = stats.linregress(np.log(X), np.log(y))
    assert POWER.fit(X, y) == pytest.approx([np.exp(line.intercept), -line.slope])
    line = stats.linregress(np.log2(X), y)
    assert LOG_LINEAR.fit(X, y) == pytest.approx([line.slope, line.intercept])


def test_the_log_linear_law_is_that_of_a_trend() -> None:
    y = noisy(LOG_LINEAR, 3)
    names = [f"variant {i}" for i in range(len(X))]
    losses = dict(zip(names, y.reshape(-1, 1, 1)))
    trend = fit_trend("d_model", dict(zip(names, X.tolist())), losses, confidence=0.95)
    assert LOG_LINEAR.fit(X, y) == pytest.approx([trend.slope.mean, trend.intercept.mean])


@pytest.mark.parametrize("seed", range(6))
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


@each_law
def test_many_data_sets_are_fitted_as_one_by_one(law: Law) -> None:
    y = np.stack([noisy(law, seed) for seed in range(4)])
    assert law.fit(X, y) == pytest.approx(np.stack([law.fit(X, row) for row in y]))


@each_law
def test_x_is_where_the_curve_reaches_y(law: Law) -> None:
    assert law.x(values(law), law.y(values(law), X)) == pytest.approx(X)


@each_law
def test_a_curve_has_the_numbers_it_is_written_with(law: Law) -> None:
    """The written form is a formula in x."""
    text = law.written(values(law), "x", "y").removeprefix("y = ").replace("^", "**")
    at_7 = eval(text, {"x": 7.0, "log2": np.log2})
    assert at_7 == pytest.approx(float(law.y(values(law), np.array(7.0))))


def test_a_loss_below_the_irreducible_one_is_never_reached() -> None:
    assert np.isnan(IRREDUCIBLE.x(values(IRREDUCIBLE), np.array([1.69, 1.7]))).all()


@each_law
def test_a_level_curve_reaches_nothing(law: Law) -> None:
    """Its slope is rounding, and x would be any number."""
    level = law.fit(X, np.full(len(X), 3.0) * (1 + 2e-16 * np.array([1, 0, 1, 0, 0])))
    assert np.isnan(law.x(level, np.array([2.9, 3.0, 3.1]))).all()


def test_points_without_a_bend_determine_no_irreducible_loss() -> None:
    """A line in y over ln x bends less than any positive e allows."""
    fit = IRREDUCIBLE.fit(X, 4 - 0.5 * np.log(X))
    assert fit[0] == 0
    assert "e is at its bound" in (IRREDUCIBLE.doubt(fit) or "")
    assert IRREDUCIBLE.doubt(IRREDUCIBLE.fit(X, noisy(IRREDUCIBLE, 0, size=1e-4))) is None


def test_rising_points_have_no_power_that_falls() -> None:
    """Without one the mean is the best curve."""
    fit = IRREDUCIBLE.fit(X, 1 + X)
    assert tuple(fit[:2]) == pytest.approx((1 + X.mean(), 0))
    assert "do not fall" in (IRREDUCIBLE.doubt(fit) or "")


@each_law
def test_a_point_left_out_is_met_by_the_curve_through_the_others(law: Law) -> None:
    y = noisy(law, 5)
    x = np.append(X, 300.0)
    y = np.append(y, law.y(values(law), np.array(300.0)))
    expected = []
    for i in range(len(x)):
        others = np.arange(len(x)) != i
        expected.append(y[i] - float(law.y(law.fit(x[others], y[others]), x[i : i + 1])[0]))
    assert leave_one_out_errors(law, x, y) == pytest.approx(expected)


@each_law
def test_where_the_others_would_fit_anything_none_is_left_out(law: Law) -> None:
    n_points = law.fewest_points
    assert np.isnan(leave_one_out_errors(law, X[:n_points], noisy(law, 0)[:n_points])).all()
    more = np.append(X[:n_points], 500.0)
    assert np.isfinite(leave_one_out_errors(law, more, law.y(values(law), more))).all()


TABLE_2 = {
    "pflops_days": ([0.1756933128, 1.109284656, 4.523435847, 16.91636204], (3.1603, 0.04979)),
    "average_width": ([640, 960, 1280, 1600], (16.978, 0.2462)),
}
TABLE_2_X = {
    "pflops_days": ([0.1700707711, 1.067906716, 4.406048481, 16.49279326], (3.1249, 0.05033)),
    "average_width": ([576, 854 + 2 / 3, 1145, 1425.6], (17.011, 0.2520)),
}


@pytest.mark.parametrize("quantity", TABLE_2)
def test_table_2_of_the_variable_width_paper_has_its_laws(quantity: str) -> None:
    """arXiv:2606.18246, Table 2, dense sizes."""
    for (x, (a, b)), losses in (
        (TABLE_2[quantity], [3.452, 3.138, 2.926, 2.751]),
        (TABLE_2_X[quantity], [3.430, 3.099, 2.890, 2.726]),
    ):
        found = POWER.fit(np.array(x), np.array(losses))
        assert f"{found[0]:.5g}" == f"{a:.5g}"
        assert f"{found[1]:.4g}" == f"{b:.4g}"


def test_the_virtual_width_law_comes_from_its_points() -> None:
    """arXiv:2511.11238, Fig. 8: -0.00685 before rounding, 1.6212, R^2 0.9986."""
    r, losses = np.array([2.0, 4, 8]), np.array([1.6145, 1.6072, 1.6008])
    slope, intercept = LOG_LINEAR.fit(r, losses)
    residuals = losses - LOG_LINEAR.y(np.array([slope, intercept]), r)
    assert slope == pytest.approx(-0.00685, abs=1e-12)
    assert round(intercept, 4) == 1.6212
    assert round(1 - residuals.var() / losses.var(), 4) == 0.9986


# arXiv:2602.06471, Tables 5 and 6: (n_blocks, d_hidden) -> loss; 12 layers of d_model 1032.
HOURGLASS = {
    (1, 418): 3.551,
    (2, 418): 3.489,
    (4, 418): 3.426,
    (6, 418): 3.391,
    (8, 418): 3.357,
    (4, 836): 3.355,
    (4, 627): 3.384,
    (4, 209): 3.500,
    (4, 103): 3.541,
}


def test_nine_hourglasses_lie_on_one_curve_of_their_parameters() -> None:
    """loss = 3.132 + 5.832 N^-0.63, N in millions, rms 0.004: the best curve of that rounded exponent.

    The best of all has 0.6294, 5.821 and 3.131; its error is the same to six digits.
    """
    law = IRREDUCIBLE
    assert isinstance(law, IrreduciblePowerLaw)
    n_params = np.array([12 * 1032 * (4 * 1032 + 3 * k * h) / 1e6 for k, h in HOURGLASS])
    losses = np.array(list(HOURGLASS.values()))

    def rms(parameters: np.ndarray) -> float:
        return float(np.sqrt(np.square(law.y(parameters, n_params) - losses).mean()))

    rounded, best = law.fit_at(n_params, losses, 0.63), law.fit(n_params, losses)
    assert [round(value, 3) for value in rounded] == [3.132, 5.832, 0.63]
    assert round(rms(rounded), 3) == 0.004
    assert round(best[2], 2) == 0.63
    assert rms(best) <= rms(rounded) < rms(best) * (1 + 1e-5)
