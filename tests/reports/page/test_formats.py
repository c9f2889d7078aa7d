import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from widthwise.records.estimate import Estimate
from widthwise.reports.page.formats import (
    MINUS,
    MISSING,
    clean,
    counted,
    duration,
    fixed,
    interval,
    plain,
    printable,
    ratio,
    shorten,
    si,
    signed,
    tick,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (63, "63"),
        (999, "999"),
        (999.6, "1.00k"),
        (1234567, "1.23M"),
        (9.995e9, "10.0G"),
        (-41000.0, f"{MINUS}41.0k"),
        (2.5e17, "250P"),
        (0.5, "0.50"),
        (None, MISSING),
        (math.nan, "not a number"),
        (-math.inf, f"{MINUS}infinite"),
    ],
)
def test_si_keeps_three_digits(value: float | None, text: str) -> None:
    assert si(value) == text


@given(st.floats(min_value=1, max_value=9e17))
def test_si_is_within_half_a_percent_of_the_value(value: float) -> None:
    text = si(value)
    size = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}.get(text[-1])
    shown = float(text[:-1]) * size if size else float(text)
    assert shown == pytest.approx(value, rel=0.00501)


def test_differences_always_carry_a_sign() -> None:
    assert (signed(0.004, 4), signed(-0.0123, 4), signed(None, 4)) == ("+0.0040", f"{MINUS}0.0123", MISSING)
    assert fixed(-1.5, 1) == f"{MINUS}1.5"


def test_unknown_interval_and_ratio_are_empty() -> None:
    assert interval(Estimate(mean=3.0), 4) == ""
    assert interval(Estimate(mean=3.0, low=2.9, high=3.1), 2) == "2.90 to 3.10"
    assert (ratio(None), ratio(math.nan), ratio(0.97, sign="")) == ("", "", "0.970")


def test_ticks_have_no_trailing_zeros() -> None:
    assert [tick(value) for value in (0, 0.002, 1500, 2e15)] == ["0", "0.002", "1.5k", "2P"]


@given(st.text())
def test_clean_text_is_one_line_without_control_characters(text: str) -> None:
    cleaned = clean(text)
    assert cleaned.isprintable() or not any(ord(letter) < 32 or letter in "\x7f\x9b\u2028\u2029" for letter in cleaned)
    assert len(shorten(text, 9)) <= 9


def test_printable_text_loses_no_line_end_and_no_mark_of_direction() -> None:
    """Embedding, override and isolate could show a name backwards; marks beside letters cannot."""
    assert printable("a\r\nb\tc\fd\n") == "a\nb\tc d\n"
    marks = "\u05d0\u200f!\u200e \u0628\u061c \u200d"
    assert printable(marks) == marks
    refused = "\x1b\r\x9b\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    assert printable(refused) == "\N{REPLACEMENT CHARACTER}" * len(refused)


def test_plain_shows_any_json_value() -> None:
    assert plain([4, 418]) == "4×418"  # noqa: RUF001
    assert plain({"a": None, "b": True}) == f"a: {MISSING}, b: yes"


def test_a_number_too_long_to_be_read_has_a_power_of_ten() -> None:
    assert (fixed(9_999_999, 1), fixed(1.25e12, 4)) == ("9999999.0", "1.250e+12")
    assert signed(1.25e12, 3) == "+1.250e+12"
    assert signed(-1.25e12, 3) == f"{MINUS}1.250e+12"


@pytest.mark.parametrize(("n", "words"), [(1, "1 seed"), (0, "0 seeds"), (1200, "1,200 seeds")])
def test_things_are_counted_in_words(n: int, words: str) -> None:
    assert counted(n, "seed") == words


@pytest.mark.parametrize(
    ("hours", "shown"), [(None, MISSING), (1e-3, "3.6 s"), (0.25, "15 min"), (23.0, "23 h"), (36.0, "1.5 d")]
)
def test_times_are_shown_in_the_largest_unit_they_fill(hours: float | None, shown: str) -> None:
    assert duration(hours) == shown
