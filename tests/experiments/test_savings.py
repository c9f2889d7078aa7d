"""What a group saves against a baseline: the definition, the paper's numbers, and how sure it is."""

import numpy as np
import pytest

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


def test_a_shifted_curve_saves_its_shift() -> None:
    """The same loss at 0.7 of x, whatever the law."""
    y = {"power": 3 * X**-0.05, "power_irreducible": 1.5 + 2 * X**-0.4, "log_linear": 4 - 0.1 * np.log2(X)}
    for kind, law in LAWS.items():
        found = saved(law, group("new", 0.7 * X, y[kind]), group("base", X, y[kind]))
        for each in found.values():
            assert each.ratio.mean == pytest.approx(0.7, rel=1e-4)
            assert each.at.y == pytest.approx(y[kind][-1])


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


@pytest.mark.parametrize(("shift", "is_outside"), [(0.2, False), (0.01, True), (2.0, True)])
def test_a_loss_that_is_reached_outside_the_groups_own_points_says_so(shift: float, is_outside: bool) -> None:
    """The group of points 1 to 27 reaches the baseline's last loss at 81 times the shift."""
    new = group("new", X[:4], 3 * (X[:4] / shift) ** -0.05)
    found = saved(POWER, new, group("base", X, 3 * X**-0.05))["curve"]
    assert found.ratio.mean == pytest.approx(shift)
    assert found.is_extrapolated == is_outside
