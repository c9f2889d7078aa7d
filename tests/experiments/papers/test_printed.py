"""A printed number agrees with what rounds to it, and with nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from widthwise.experiments.papers.printed import Printed


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
