"""A printed number agrees with what rounds to it, and with nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from widthwise.experiments.papers.printed import Printed, statement
from widthwise.experiments.statistics import seed_interval
from widthwise.records.estimate import Estimate


@pytest.mark.parametrize(
    ("text", "value", "half_unit"),
    [
        ("3.430", 3.43, 0.0005),
        ("113M", 113e6, 0.5e6),
        ("-3.2%", -0.032, 0.0005),
        ("576", 576, 0.5),
        ("+4.16", 4.16, 0.005),
        ("1.5B", 1.5e9, 0.05e9),
    ],
)
def test_the_digits_say_how_exactly_a_number_is_known(text, value, half_unit):
    printed = Printed.of(text)
    assert printed.value == pytest.approx(value, rel=1e-12)
    assert printed.half_unit == pytest.approx(half_unit, rel=1e-12)


@pytest.mark.parametrize("text", ["", "3,430", "113 M", "about 3", "1e6", "nan", ".5", "5."])
def test_what_is_no_printed_number_is_refused(text):
    with pytest.raises(ValueError, match="as it is printed"):
        Printed.of(text)


@given(st.integers(-(10**6), 10**6), st.integers(0, 5), st.floats(-0.499, 0.499))
def test_a_number_agrees_with_all_that_round_to_it_and_with_no_other(digits, n_decimals, part):
    unit = 10.0**-n_decimals
    printed = Printed.of(f"{digits * unit:.{n_decimals}f}")
    assert printed.agrees_with((digits + part) * unit)
    assert not printed.agrees_with((digits + 0.51) * unit)
    assert not printed.agrees_with((digits - 0.51) * unit)


@pytest.mark.parametrize(
    ("differences", "higher", "lower"),
    [([0.2, 0.3, 0.25], "yes", "no"), ([-0.2, -0.3], "cannot tell", "cannot tell"), ([-2.0, -2.1, -2.05], "no", "yes")],
)
def test_a_direction_is_judged_by_the_interval_of_the_difference(differences, higher, lower):
    measured = seed_interval(differences)
    assert (statement("higher").reproduced_by(measured), statement("lower").reproduced_by(measured)) == (higher, lower)


def test_without_an_interval_no_direction_can_be_told():
    assert statement("higher").reproduced_by(Estimate(mean=0.5, per_seed=[0.5])) == "cannot tell"


def test_unchanged_means_every_seed_up_to_rounding():
    assert statement("unchanged").reproduced_by(seed_interval([0.0, 3e-16])) == "yes"
    assert statement("unchanged").reproduced_by(seed_interval([0.0, -1e-6])) == "no"


def test_a_number_is_not_judged_at_another_size():
    assert statement("3.430").reproduced_by(seed_interval([3.43, 3.43])) is None
