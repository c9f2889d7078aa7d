"""Numbers and texts of a page: what is written is the value, in one line that shows nothing else."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from widthwise.reports.formats import MINUS, MISSING, amount, clean, fixed, printable, shorten, si, signed

SIZES = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18, "Z": 1e21}


def value_of(text: str) -> float:
    text = text.replace(MINUS, "-")
    return float(text[:-1]) * SIZES[text[-1]] if text[-1] in SIZES else float(text)


def test_si_keeps_three_digits() -> None:
    numbers = {0: "0", 63: "63", 999: "999", 999.6: "1.00k", 1234567: "1.23M", 9.995e9: "10.0G", 0.5: "0.50"}
    numbers |= {-41000.0: f"{MINUS}41.0k", 2.5e17: "250P", -math.inf: f"{MINUS}infinite"}
    assert {value: si(value) for value in numbers} == numbers
    assert (si(None), si(math.nan)) == (MISSING, "not a number")
    assert [amount(value) for value in (2.17e9, 1234567, 63, None)] == ["2.17B", "1.23M", "63", MISSING]


@given(st.floats(min_value=1, max_value=9e17))
def test_si_is_within_half_a_percent_of_the_value(value: float) -> None:
    assert value_of(si(value)) == pytest.approx(value, rel=0.00501)


def test_a_number_too_long_to_be_read_has_a_power_of_ten() -> None:
    assert (fixed(9_999_999, 1), fixed(1.25e12, 4)) == ("9999999.0", "1.250e+12")
    assert (signed(1.25e12, 3), signed(-1.25e12, 3)) == ("+1.250e+12", f"{MINUS}1.250e+12")


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
