"""What a group saves against a baseline: the definition, the paper's numbers, and how sure it is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from widthwise.experiments.scaling.law_fit import fit_law
from widthwise.experiments.scaling.laws import LAWS, Law
from widthwise.experiments.scaling.points import CurveGroup, Point
from widthwise.experiments.scaling.savings import savings
from widthwise.records.scaling import Saving

POWER, IRREDUCIBLE, LOG_LINEAR = LAWS.values()
X = np.array([1.0, 3.0, 9.0, 27.0, 81.0])


def group(name: str, x: np.ndarray | list[float], y: np.ndarray | list[float]) -> CurveGroup:
    rows = zip(np.asarray(x, dtype=float), np.reshape(y, (len(x), -1)))
    return CurveGroup(name, tuple(Point(f"{name}{i}", float(a), tuple(map(float, b))) for i, (a, b) in enumerate(rows)))


def saved(law: Law, new: CurveGroup, base: CurveGroup, confidence: float = 0.95) -> dict[str, Saving]:
    return {each.kind: each for each in savings(fit_law(law, new), fit_law(law, base), confidence)}


def noisy(seed: int, a: float, n_points: int = 5, size: float = 0.004) -> np.ndarray:
    return a * X[:n_points] ** -0.05 * np.exp(size * np.random.default_rng(seed).normal(size=n_points))


TRANSFORMER, X_FORMER = [3.452, 3.138, 2.926, 2.751], [3.430, 3.099, 2.890, 2.726]
COMPUTE = ([0.1756933128, 1.109284656, 4.523435847, 16.91636204], [0.1700707711, 1.067906716, 4.406048481, 16.49279326])
WIDTHS = ([640, 960, 1280, 1600], [576, 854 + 2 / 3, 1145, 1425.6])


@pytest.mark.parametrize(("x", "curve", "point"), [(COMPUTE, 0.776, 0.744), (WIDTHS, 0.8507, 0.863)])
def test_table_2_of_the_variable_width_paper_saves_what_it_claims(x: tuple, curve: float, point: float) -> None:
    """arXiv:2606.18246: 77.8% of the FLOPs and 85.1% of the width are curve against curve; of unrounded FLOPs 77.6%."""
    found = saved(POWER, group("x", x[1], X_FORMER), group("uniform", x[0], TRANSFORMER))
    assert found["curve"].ratio.mean == pytest.approx(curve, abs=5e-4)
    assert found["point"].ratio.mean == pytest.approx(point, abs=5e-4)
    assert (found["point"].at.y, found["point"].at.x) == (2.751, x[0][-1])
    assert found["curve"].ratio.low < found["curve"].ratio.mean < found["curve"].ratio.high
    assert not found["curve"].is_extrapolated


def test_a_shifted_curve_saves_its_shift() -> None:
    """The same loss at 0.7 of x, whatever the law."""
    y = {"power": 3 * X**-0.05, "power_irreducible": 1.5 + 2 * X**-0.4, "log_linear": 4 - 0.1 * np.log2(X)}
    for kind, law in LAWS.items():
        found = saved(law, group("new", 0.7 * X, y[kind]), group("base", X, y[kind]))
        for each in found.values():
            assert each.ratio.mean == pytest.approx(0.7, rel=1e-4)
            assert each.at.y == pytest.approx(y[kind][-1])


@given(x_unit=st.floats(1e-9, 1e15), y_unit=st.floats(0.01, 100))
def test_savings_have_no_unit(x_unit: float, y_unit: float) -> None:
    new, base = noisy(1, 2.95), noisy(2, 3.0)
    plain = saved(POWER, group("new", 0.9 * X, new), group("base", X, base))
    scaled = saved(POWER, group("new", 0.9 * x_unit * X, y_unit * new), group("base", x_unit * X, y_unit * base))
    for kind in plain:
        expected, found = plain[kind].ratio, scaled[kind].ratio
        assert (found.low, found.mean, found.high) == pytest.approx((expected.low, expected.mean, expected.high))


def test_what_sizes_have_in_common_cancels() -> None:
    """Equal groups save nothing and leave no doubt, however far their points are from the curve."""
    y = noisy(3, 3.0, size=0.05)
    curve = saved(POWER, group("new", X, y), group("base", X, y))["curve"]
    assert (curve.ratio.low, curve.ratio.mean, curve.ratio.high) == pytest.approx((1, 1, 1))


@pytest.mark.parametrize("n_points", [5, 4])
def test_ninety_percent_intervals_hold_the_truth_about_so_often(n_points: int) -> None:
    """With one layout and with two, independent noise in both; the binomial standard error is 1.9 percent."""
    true, hits = (2.95 / 3) ** (1 / 0.05), 0
    for seed in range(250):
        new = group("new", 0.9 * X[:n_points], 0.9**-0.05 * noisy(2 * seed, 2.95, n_points))
        ratio = saved(POWER, new, group("base", X, noisy(2 * seed + 1, 3.0)), 0.90)["curve"].ratio
        hits += ratio.low < true < ratio.high
    assert hits / 250 == pytest.approx(0.90, abs=0.06)


def test_a_loss_that_is_never_reached_has_no_ratio() -> None:
    worse = group("new", X, 3.2 + 0.3 * X**-0.5)
    found = saved(IRREDUCIBLE, worse, group("base", X, 2 + X**-0.5))["curve"]
    assert (found.ratio.mean, found.ratio.low, found.ratio.high) == (None, None, None)
    assert found.is_extrapolated


@pytest.mark.parametrize(("shift", "is_outside"), [(0.2, False), (0.01, True), (2.0, True)])
def test_a_loss_that_is_reached_outside_the_groups_own_points_says_so(shift: float, is_outside: bool) -> None:
    """The group of points 1 to 27 reaches the baseline's last loss at 81 times the shift."""
    new = group("new", X[:4], 3 * (X[:4] / shift) ** -0.05)
    found = saved(POWER, new, group("base", X, 3 * X**-0.05))["curve"]
    assert found.ratio.mean == pytest.approx(shift)
    assert found.is_extrapolated == is_outside


def test_the_luck_of_the_one_point_widens_its_interval() -> None:
    """With seeds, the measured loss of the largest model is as uncertain as its runs."""
    luck = np.random.default_rng(5).normal(size=(5, 4))
    base = group("base", X, (3 * X**-0.05)[:, None] * np.exp(0.01 * luck))
    new = group("new", X, np.repeat((2.95 * X**-0.05)[:, None], 3, axis=1))
    curve, point = saved(POWER, new, base).values()
    assert np.log(point.ratio.high / point.ratio.low) > np.log(curve.ratio.high / curve.ratio.low) > 0
