"""The laws: exact on data that follow them, and elsewhere as good as independent least squares."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import least_squares
from scipy.special import huber

from widthwise.experiments.laws import CHINCHILLA, LAWS, PARABOLA, Law

POWER, IRREDUCIBLE, LOG_LINEAR = LAWS.values()
X = np.array([0.3, 1.1, 4.5, 17.0, 90.0])
PARAMETERS = {"power": [3.1, 0.05], "power_irreducible": [1.7, 1.4, 0.31], "log_linear": [-0.11, 3.2]}


def values(law: Law) -> np.ndarray:
    return np.array(PARAMETERS[law.kind])


def noisy(law: Law, seed: int, size: float = 0.02) -> np.ndarray:
    return law.y(values(law), X) * np.exp(size * np.random.default_rng(seed).normal(size=len(X)))


@settings(max_examples=30, deadline=None)
@given(e=st.floats(0.5, 4), a=st.floats(0.3, 5), b=st.floats(0.05, 1.5), unit=st.floats(1e-3, 1e9))
def test_an_irreducible_loss_is_recovered_exactly(e: float, a: float, b: float, unit: float) -> None:
    """Whatever the unit of x: the same curve has a times unit^b."""
    y = e + a * X**-b
    assert IRREDUCIBLE.fit(X * unit, y) == pytest.approx([e, a * unit**b, b], rel=1e-5)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 100))
def test_lines_are_those_of_scipy(seed: int) -> None:
    y = noisy(POWER, seed)
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
    assert "e is at its bound" in (IRREDUCIBLE.warning(fit, X) or "")
    assert IRREDUCIBLE.warning(IRREDUCIBLE.fit(X, noisy(IRREDUCIBLE, 0, size=1e-4)), X) is None


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_a_point_left_out_is_met_by_the_curve_through_the_others_and_x_is_where_the_curve_reaches_y(law: Law) -> None:
    assert law.x(values(law), law.y(values(law), X)) == pytest.approx(X)
    y = noisy(law, 5)
    x = np.append(X, 300.0)
    y = np.append(y, law.y(values(law), np.array(300.0)))
    expected = []
    for i in range(len(x)):
        others = np.arange(len(x)) != i
        expected.append(y[i] - float(law.y(law.fit(x[others], y[others]), x[i : i + 1])[0]))
    assert law.leave_one_out_errors(x, y) == pytest.approx(expected)


@pytest.mark.parametrize("unit", [1e-31, 1e31, 1e60])
def test_an_irreducible_loss_is_fitted_at_any_x(unit: float) -> None:
    y = 2 + 3 * X**-0.3
    with np.errstate(all="raise", under="ignore"):
        fit = IRREDUCIBLE.fit(X * unit, y)
    assert IRREDUCIBLE.y(fit, X * unit) == pytest.approx(y, rel=1e-6)


def chinchilla_points(noise: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the constants of Besiroglu et al. 2024, and 63 models that follow them, x and y."""
    truth = np.array([1.8172, 482.01, 2085.43, 0.3478, 0.3658])
    n_params, n_tokens = np.meshgrid(np.geomspace(5e7, 1.6e10, 9), np.geomspace(1e9, 5e11, 7))
    x = np.stack([n_params.ravel(), n_tokens.ravel()], axis=-1)
    luck = np.random.default_rng(seed).normal(size=len(x))
    return truth, x, CHINCHILLA.y(truth, x) * np.exp(noise * luck)


def test_the_joint_law_is_recovered_and_no_start_leads_below_its_fit() -> None:
    truth, x, y = chinchilla_points(0)
    assert CHINCHILLA.fit(x, y, start=1.3 * truth) == pytest.approx(truth, rel=1e-3)

    truth, x, y = chinchilla_points(0.004)

    def objective(parameters: np.ndarray) -> float:
        """Hoffmann et al. 2022, equation 3."""
        residual = np.log(y) - np.log(CHINCHILLA.y(parameters, x))
        return float(huber(1e-3, residual).sum())

    fit = CHINCHILLA.fit(x, y)
    rivals = [
        CHINCHILLA.fit(x, y, start=truth * factors) for factors in np.random.default_rng(1).uniform(0.5, 2, (9, 5))
    ]
    assert objective(fit) <= min(map(objective, rivals)) * (1 + 1e-7)
    assert objective(fit) < objective(truth)


@given(x_min=st.floats(0.5, 60), y_min=st.floats(1, 5), c=st.floats(0.01, 1), unit=st.floats(1e-3, 1e12))
def test_a_parabola_is_recovered_exactly(x_min: float, y_min: float, c: float, unit: float) -> None:
    expected = np.array([x_min * unit, y_min, c])
    y = PARABOLA.y(expected, X * unit)
    assert PARABOLA.fit(X * unit, y) == pytest.approx(expected, rel=1e-6)
    assert PARABOLA.warning(expected, X * unit) is None
    assert PARABOLA.warning(expected, X * unit * 1e3) == "no minimum within the points"
