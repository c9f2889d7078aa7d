"""The table of an item: numbers, words, differences and numbers too small for decimals."""

import pytest

from widthwise.records.estimate import Estimate
from widthwise.records.paper import PaperItem, PaperLine
from widthwise.reports.page.formats import MINUS
from widthwise.reports.paper.tables import item_table, list_table

ABOVE = Estimate(mean=0.25, low=0.125, high=0.375, per_seed=[0.125, 0.375])


def item(*lines: PaperLine) -> PaperItem:
    return PaperItem(name="i", paper="P, arXiv:0", where="Table 0", title="t", finds="nothing", lines=lines)


def line(**changes) -> PaperLine:
    return PaperLine.model_validate({"row": "r", "quantity": "share", "title": "share", **changes})


@pytest.mark.parametrize(
    ("shown", "cells"),
    [
        (line(measured=ABOVE), ["share", "", "", "", "0.2500\n0.125 to 0.375"]),
        (
            line(printed="higher", measured=ABOVE, reproduces="yes", is_difference=True),
            ["share", "higher", "", "yes", "+0.2500\n+0.1250 to +0.3750"],
        ),
        (
            line(printed="unchanged", measured=Estimate(mean=2.5e-16, low=-1e-17, high=1.0), reproduces="no"),
            ["share", "unchanged", "", "no", f"2.5e{MINUS}16\n{MINUS}1.0e{MINUS}17 to 1.000"],
        ),
        (line(measured=Estimate(mean=0.0, low=0.0, high=0.0)), ["share", "", "", "", "0.0000\n0.000 to 0.000"]),
        (line(printed="12", printed_value=12.0, counted=12.3, agrees=True), ["share", "12", "12.3000", "yes", ""]),
        (line(printed="12", printed_value=12.0, counted=13, agrees=False), ["share", "12", "13.0000", "no", ""]),
    ],
)
def test_a_line_says_what_is_printed_counted_and_measured(shown, cells):
    assert item_table(item(shown)).rows == [["r", *cells]]


def test_a_row_is_named_once():
    assert [row[0] for row in item_table(item(line(), line(), line(row="s"))).rows] == ["r", "", "s"]


def test_the_list_counts_what_agrees_among_what_can_be_judged():
    counted = line(printed="12", printed_value=12.0, counted=12, agrees=True)
    words = line(printed="lower", measured=ABOVE, reproduces="cannot tell", is_difference=True)
    row = list_table([item(counted, words, line(measured=ABOVE))]).rows[0]
    assert row[2:5] == ["2", "1 of 2", "2"]
