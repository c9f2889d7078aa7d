"""Widths of a shape from its ends to its turn, solved for the budget of its uniform model as in the paper."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from boxes import refusal
from hypothesis import given, settings
from hypothesis import strategies as st
from quadratic_cost import ORACLE, RHO, QuadraticCost, params_cost

from widthwise.mistakes import UserError
from widthwise.shape.rounding import round_nearest
from widthwise.shape.schedule import SCHEDULES, solve_widths


def solve(vector, cost, kind="x"):
    where = [vector[key] for key in ("n_layers", "turn_layer", "turn_ratio")]
    return solve_widths(SCHEDULES[kind], cost, *where)


@pytest.mark.parametrize("name", ORACLE["configs"])
def test_the_papers_configurations_are_reproduced(name):
    config = ORACLE["configs"][name]
    n_experts = config["n_experts"]
    widths = solve(config, params_cost(config["d_model"], n_experts * RHO if n_experts else 4.0, n_experts))
    np.testing.assert_allclose(widths, config["widths_continuous"], rtol=1e-9)
    ends = widths[1] / widths[0], widths[-1] / widths[-2], widths[0]
    assert ends == pytest.approx([config[key] for key in ("alpha_minus", "alpha_plus", "d_bar")], rel=1e-9)
    assert round_nearest(widths, 32).tolist() == config["widths"]


def test_reference_shapes_are_reproduced():
    for vector in ORACLE["shapes"]:
        widths = solve(vector, params_cost(vector["d_model"]), vector["kind"])
        np.testing.assert_allclose(widths, vector["widths_continuous"], rtol=1e-6)
        assert round_nearest(widths, 32).tolist() == vector["widths"]


@st.composite
def problems(draw):
    """(schedule, cost, n_layers, turn_layer, turn_ratio), always feasible."""
    kind = draw(st.sampled_from(sorted(SCHEDULES)))
    n_layers = draw(st.integers(4, 63))
    turn_layer = draw(st.sampled_from(SCHEDULES[kind].turn_layers(n_layers)))
    ratio = draw(st.floats(1.05, 1.5) if kind == "diamond" else st.floats(0.1, 0.95))
    d_model = draw(st.integers(97, 4096))
    square, linear = draw(st.floats(1, 50)), draw(st.floats(0, 1e5))
    savings = [draw(st.floats(0, 0.9)) * square for _ in range(2)]
    cost = QuadraticCost(d_model, square, linear, *savings)
    progression = draw(st.sampled_from(["geometric", "arithmetic"]))
    schedule = replace(SCHEDULES[kind], progression=progression)
    if kind in ("x", "diamond"):
        schedule = replace(schedule, last_over_first=draw(st.sampled_from([1.0, None])))
    return schedule, cost, n_layers, turn_layer, ratio


@given(problem=problems())
@settings(deadline=None)
def test_solved_widths_cost_the_budget_and_keep_the_shape(problem):
    schedule, cost, n_layers, turn_layer, ratio = problem
    widths = solve_widths(*problem)
    assert cost.total(widths) == pytest.approx(cost.uniform(n_layers), rel=1e-9)
    assert widths[turn_layer - 1] == ratio * cost.d_model
    towards_turn = np.diff(widths) * np.where(np.arange(1, n_layers) < turn_layer, 1, -1)
    assert (towards_turn > 0).all() if ratio > 1 else (towards_turn < 0).all()
    if schedule.kind in ("x", "diamond") and schedule.last_over_first:
        assert widths[0] == widths[-1]


@pytest.mark.parametrize(("progression", "last_over_first"), [("geometric", 0.5), ("arithmetic", 1.7)])
def test_ends_of_different_width_cost_the_budget_too(progression, last_over_first):
    schedule = replace(SCHEDULES["x"], progression=progression, last_over_first=last_over_first)
    widths = solve_widths(schedule, params_cost(97), 11, 7, 0.3)
    assert params_cost(97).total(widths) == pytest.approx(params_cost(97).uniform(11), rel=1e-12)
    assert widths[-1] / widths[0] == pytest.approx(last_over_first, rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "ratio", "last_over_first", "side"), [("x", 0.5, 0.2, "wider"), ("diamond", 1.05, 5.0, "narrower")]
)
def test_an_end_on_the_wrong_side_of_the_turn_is_refused(kind, ratio, last_over_first, side):
    schedule = replace(SCHEDULES[kind], last_over_first=last_over_first)
    with pytest.raises(UserError, match=rf"model.shape.last_over_first: got .*kind '{kind}' needs both {side} than"):
        solve_widths(schedule, params_cost(97), 9, 5, ratio)


def test_a_peak_beyond_the_budget_names_the_largest_ratio_that_works():
    cost = params_cost(256)
    with pytest.raises(UserError, match=r"shape.peak_width: 3 times d_model") as refusal:
        solve_widths(SCHEDULES["diamond"], cost, 8, 4, 3.0)
    largest = float(re.findall(r"[\d.]+$", str(refusal.value))[0])
    assert largest < math.sqrt(8)  # there the peak alone costs the budget
    solve_widths(SCHEDULES["diamond"], cost, 8, 4, largest)
    with pytest.raises(UserError):
        solve_widths(SCHEDULES["diamond"], cost, 8, 4, largest + 0.001)


def test_narrowing_is_growing_read_backwards():
    growing = SCHEDULES["growing"].widths(900.0, 100.0, 7, 1)
    narrowing = SCHEDULES["narrowing"].widths(900.0, 100.0, 7, 7)
    np.testing.assert_allclose(growing, 100.0 * 9.0 ** (np.arange(7) / 6), rtol=1e-13)
    np.testing.assert_allclose(narrowing, growing[::-1], rtol=1e-13)


@pytest.mark.parametrize(
    ("progression", "end", "between"),
    [("geometric", 160.0, [80.0, 40.0, 20.0]), ("arithmetic", 106.0, [82.0, 58.0, 34.0])],
)
def test_ends_may_differ_by_a_factor_or_follow_from_one_rate(progression, end, between):
    """Up to the turn both are the same; behind it the last layer is half as wide as the first, or the rate the same."""
    schedule = replace(SCHEDULES["x"], progression=progression)
    halved = replace(schedule, last_over_first=0.5).widths(end, 10.0, 7, 5)
    np.testing.assert_allclose(halved[[0, 1, 2, 3, 4, 6]], [end, *between, 10.0, end / 2], rtol=1e-13)
    even = replace(schedule, last_over_first=None)
    np.testing.assert_allclose(even.widths(end, 10.0, 7, 5), [end, *between, 10.0, *between[:0:-1]], rtol=1e-13)
    np.testing.assert_allclose(even.widths(end, 10.0, 7, 3), even.widths(end, 10.0, 7, 5)[::-1], rtol=1e-13)


def test_the_turn_is_at_the_rounded_fraction_or_the_only_layer_allowed():
    places = [("x", 16, 0.75, 12), ("x", 63, 0.75, 47), ("diamond", 5, 0.5, 2), ("growing", 9, None, 1)]
    for kind, n_layers, depth, layer in [*places, ("narrowing", 9, None, 9)]:
        assert SCHEDULES[kind].turn_layer(n_layers, depth) == layer
    allowed = "turns at layers 2 to 15, a fraction 0.125 to 0.9375 of the depth"
    for kind, n_layers, depth, message in [
        ("x", 16, 0.02, f"shape.bottleneck_layer: turns at layer 0 of 16; kind 'x' {allowed}"),
        ("diamond", 16, 1.0, f"shape.peak_layer: turns at layer 16 of 16; kind 'diamond' {allowed}"),
        ("x", 2, 0.5, "n_layers: 2 is too few for shape kind 'x'"),
        ("narrowing", 1, None, "n_layers: 1 is too few"),
        ("growing", 16, 0.75, "shape.kind: turns at layer 12 of 16; kind 'growing' turns at layers 1 to 1"),
    ]:
        assert refusal(SCHEDULES[kind].turn_layer, n_layers, depth).startswith(f"model.{message}")


def test_a_ratio_on_the_wrong_side_is_refused():
    for kind, ratio, message in [
        ("x", 1.0, "bottleneck_width: 1 times d_model; kind 'x' needs between 0 and 1"),
        ("growing", 0.0, "narrow_width: 0 times d_model; kind 'growing' needs between 0 and 1"),
        ("diamond", 0.9, "peak_width: 0.9 times d_model; kind 'diamond' needs above 1"),
    ]:
        assert refusal(solve_widths, SCHEDULES[kind], params_cost(97), 9, 5, ratio) == f"model.shape.{message}"
