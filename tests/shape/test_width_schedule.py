"""How widths run from one end to the turn and to the other end, and where they may turn."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from widthwise.mistakes import UserError
from widthwise.shape.schedule import SCHEDULES


@given(
    kind=st.sampled_from(["x", "diamond"]),
    progression=st.sampled_from(["geometric", "arithmetic"]),
    n_layers=st.integers(3, 97),
    where=st.floats(0, 1),
    end=st.floats(2, 5000),
)
def test_an_inner_turn_gives_equal_ends_and_one_ratio_or_difference_on_each_side(
    kind, progression, n_layers, where, end
):
    turn_layer = 2 + round(where * (n_layers - 3))
    widths = replace(SCHEDULES[kind], progression=progression).widths(end, 777.0, n_layers, turn_layer)
    assert (widths[0], widths[turn_layer - 1], widths[-1]) == pytest.approx((end, 777.0, end), rel=1e-12)
    steps = np.diff(np.log(widths) if progression == "geometric" else widths)
    np.testing.assert_allclose(steps[: turn_layer - 1], steps[0], atol=1e-9)
    np.testing.assert_allclose(steps[turn_layer - 1 :], steps[-1], atol=1e-9)


def test_narrowing_is_growing_read_backwards():
    growing = SCHEDULES["growing"].widths(900.0, 100.0, 7, 1)
    narrowing = SCHEDULES["narrowing"].widths(900.0, 100.0, 7, 7)
    np.testing.assert_allclose(growing, 100.0 * 9.0 ** (np.arange(7) / 6), rtol=1e-13)
    np.testing.assert_allclose(narrowing, growing[::-1], rtol=1e-13)


@pytest.mark.parametrize(
    ("progression", "between"),
    [("geometric", [80.0, 40.0, 20.0]), ("arithmetic", [82.0, 58.0, 34.0])],
)
def test_ends_may_differ_by_a_factor_or_follow_from_one_rate(progression, between):
    """Up to the turn both are the same; behind it the last layer is half as wide as the first, or the rate the same."""
    end = {"geometric": 160.0, "arithmetic": 106.0}[progression]
    schedule = replace(SCHEDULES["x"], progression=progression)
    halved = replace(schedule, last_over_first=0.5).widths(end, 10.0, 7, 5)
    np.testing.assert_allclose(halved[[0, 1, 2, 3, 4, 6]], [end, *between, 10.0, end / 2], rtol=1e-13)
    even = replace(schedule, last_over_first=None)
    step = {"geometric": 20.0, "arithmetic": 34.0}[progression]
    np.testing.assert_allclose(even.widths(end, 10.0, 7, 5), [end, *between, 10.0, step, between[1]], rtol=1e-13)
    np.testing.assert_allclose(even.widths(end, 10.0, 7, 3), even.widths(end, 10.0, 7, 5)[::-1], rtol=1e-13)


def test_the_turn_is_at_the_rounded_fraction_or_the_only_layer_allowed():
    for kind, n_layers, depth, layer in [
        ("x", 16, 0.75, 12), ("x", 63, 0.75, 47), ("diamond", 5, 0.5, 2), ("growing", 9, None, 1),
        ("narrowing", 9, None, 9),
    ]:  # fmt: skip
        assert SCHEDULES[kind].turn_layer(n_layers, depth) == layer
    for kind, n_layers, depth, message in [
        ("x", 16, 0.02, r"shape.bottleneck_layer: turns at layer 0 of 16; .* layers 2 to 15, a fraction 0.125 to 0.9"),
        ("diamond", 16, 1.0, "shape.peak_layer: turns at layer 16 of 16; .* layers 2 to 15"),
        ("x", 2, 0.5, "n_layers: 2 is too few for shape kind 'x'"),
        ("growing", 1, None, "n_layers: 1 is too few"),
        ("narrowing", 1, None, "n_layers: 1 is too few"),
        ("growing", 16, 0.75, "shape.* layer 12 of 16; kind 'growing' turns at layers 1 to 1"),
    ]:
        with pytest.raises(UserError, match=f"^model.{message}"):
            SCHEDULES[kind].turn_layer(n_layers, depth)


def test_a_ratio_on_the_wrong_side_is_refused():
    for kind, ratio, allowed in [
        ("x", 1.0, "between 0 and 1"), ("growing", 0.0, "between 0 and 1"), ("diamond", 0.9, "above 1"),
    ]:  # fmt: skip
        with pytest.raises(UserError, match=f"^model.shape.{SCHEDULES[kind].ratio_key}: {ratio:g} .*{allowed}"):
            SCHEDULES[kind].check_turn_ratio(ratio)
