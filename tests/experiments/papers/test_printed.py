"""A printed number agrees with what rounds to it, and with nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from widthwise.experiments.papers.item import parse_printed
from widthwise.experiments.statistics import seed_interval


def test_the_digits_say_how_exactly_a_number_is_known_and_anything_else_is_refused():
    known = {"3.430": (3.43, 0.0005), "113M": (113e6, 0.5e6), "-3.2%": (-0.032, 0.0005), "+4.16": (4.16, 0.005)}
    for text, expected in known.items():
        assert (parse_printed(text).number, parse_printed(text).half_unit) == pytest.approx(expected, rel=1e-12)
    for text in ("", "3,430", "113 M", "about 3", "1e6", "nan", ".5", "5."):
        with pytest.raises(ValueError, match="as it is printed"):
            parse_printed(text)


@given(st.integers(-(10**6), 10**6), st.integers(0, 5), st.floats(-0.499, 0.499))
def test_a_number_agrees_with_all_that_round_to_it_and_with_no_other(digits, n_decimals, part):
    unit = 10.0**-n_decimals
    number = parse_printed(f"{digits * unit:.{n_decimals}f}")
    assert number.agrees_with((digits + part) * unit)
    assert not number.agrees_with((digits + 0.51) * unit)
    assert not number.agrees_with((digits - 0.51) * unit)


def test_a_direction_is_judged_by_the_interval_of_the_difference_and_unchanged_by_every_seed_up_to_rounding():
    for differences, *answers in (
        ([0.2, 0.3, 0.25], "yes", "no"),
        ([-0.2, -0.3], "cannot tell", "cannot tell"),
        ([-2.0, -2.1, -2.05], "no", "yes"),
    ):
        assert [parse_printed(way).reproduced_by(seed_interval(differences)) for way in ("higher", "lower")] == answers
    assert parse_printed("unchanged").reproduced_by(seed_interval([0.0, 3e-16])) == "yes"
    assert parse_printed("unchanged").reproduced_by(seed_interval([0.0, -1e-6])) == "no"
