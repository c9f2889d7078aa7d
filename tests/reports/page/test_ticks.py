import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from widthwise.reports.page.formats import MINUS
from widthwise.reports.page.ticks import MOST_LETTERS, RoundSteps, number_axis, tick_labels

SIZES = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18, "Z": 1e21}


def value_of(label: str) -> float:
    label = label.replace(MINUS, "-")
    return float(label[:-1]) * SIZES[label[-1]] if label[-1] in SIZES else float(label)


def labels_between(low: float, high: float, whole: bool = False, n_most: int = 5) -> Sequence[str]:
    axes = Figure().add_subplot()
    axes.set_xlim(low, high)
    number_axis(axes.xaxis, n_most, whole)
    return axes.xaxis.get_major_formatter().format_ticks(axes.get_xticks())


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([7.6, 7.6025, 7.605, 7.6075], ["7.6", "7.6025", "7.605", "7.6075"]),
        ([169.1e9, 169.15e9, 169.2e9], ["169.1G", "169.15G", "169.2G"]),
        ([0.1 + 0.2, 0.4], ["0.3", "0.4"]),
        ([-0.2, 1e-17, 0.2], [f"{MINUS}0.2", "0", "0.2"]),
        ([500, 1000, 1500], ["500", "1k", "1.5k"]),
        ([12345], ["12.345k"]),
        ([], []),
    ],
)
def test_labels_have_the_digits_of_the_step(values: list[float], labels: list[str]) -> None:
    assert tick_labels(values) == labels


def test_differences_have_a_sign_and_nothing_has_none() -> None:
    assert tick_labels([-0.2, 0, 0.2], "+") == [f"{MINUS}0.2", "0", "+0.2"]


@given(st.floats(-1e15, 1e15), st.floats(-9, 0))
def test_labels_are_exact_multiples_of_one_step_and_all_differ(low: float, log_range: float) -> None:
    length = max(abs(low), 1.0) * 10**log_range
    locator = RoundSteps(7, most_letters=math.inf)
    places = list(locator.tick_values(low, low + length))
    shown = [value_of(label) for label in tick_labels(places)]
    assert len(set(shown)) == len(shown)
    step = places[1] - places[0]
    assert shown == pytest.approx(places, rel=1e-14, abs=1e-5 * step)
    assert f"{step:.1e}"[:3] in ("1.0", "2.0", "5.0")


@pytest.mark.parametrize(("low", "high"), [(57.0, 63.0), (0.95, 2.05), (1.9, 2.1), (0.0, 61.3), (3.0, 5999.0)])
def test_counted_things_have_whole_numbers_alone(low: float, high: float) -> None:
    labels = labels_between(low, high, whole=True)
    assert labels
    assert all(value_of(label).is_integer() for label in labels)


def test_steps_are_coarser_where_labels_are_long() -> None:
    short, long = (labels_between(low, low + 1e-6, n_most=9) for low in (0.0, 1.0))
    assert len(long) < len(short)
    assert sum(map(len, long[1:-1])) <= MOST_LETTERS
