"""The lines of an item: what is printed, what the recipes count, what an experiment left behind."""

from pathlib import Path

import pytest
from small_costs import small_cost

from widthwise.config_io import parse
from widthwise.experiments.papers.item import Item, item_record
from widthwise.records.estimate import Estimate
from widthwise.records.outcome import Outcome, Variant

ITEM = {
    "paper": "hourglass",
    "where": "Table 0",
    "title": "two models",
    "finds": "nothing",
    "sizes": ["conventional_113m", "hourglass_113m"],
    "small": {"kind": "compare", "recipe": "hourglass_table_1_small", "rows": {"hourglass_113m": "k5"}},
    "printed": {
        "conventional_113m": {"layer_params": "113M", "seq_len": "2048", "val_loss": "3.464"},
        "hourglass_113m": {"layer_params": "114M", "layer_params_change": "-0.0%", "val_loss": "3.426"},
    },
}


def variant(name: str, loss: float, difference: Estimate | None) -> Variant:
    measured = Estimate(mean=loss, low=loss - 0.1, high=loss + 0.1, per_seed=[loss, loss])
    cost = small_cost(params={"total": 1000})
    return Variant(
        name=name, state="finished", runs=["run"], val_loss=measured, difference=difference, cost=cost, ratio={}
    )


@pytest.fixture
def results(tmp_path: Path) -> Path:
    difference = Estimate(mean=0.25, low=0.125, high=0.375, per_seed=[0.25, 0.25])
    about = {"title": "small", "command": "none", "created": "now", "environment": {}}
    asked = {"confidence": 0.95, "seeds": [1, 2], "baseline": "conventional"}
    variants = [variant("conventional", 5.0, None), variant("k5", 5.25, difference)]
    Outcome(**about, **asked, points=variants).write(tmp_path / "hourglass_table_1_small")
    return tmp_path


def lines(results: Path, **changes):
    record = item_record("item", parse(Item, {**ITEM, **changes}, "item"), results)
    return {(line.row, line.quantity): line for line in record.lines}


def test_what_follows_from_the_size_is_counted_and_held_against_the_printed_digits(tmp_path):
    found = lines(tmp_path)
    conventional = found["conventional_113m", "layer_params"]
    assert conventional.counted == 12 * (4 * 768**2 + 3 * 768 * 3072)
    assert conventional.agrees
    assert found["conventional_113m", "seq_len"].counted == 2048
    hourglass = found["hourglass_113m", "layer_params"]
    assert hourglass.counted == 12 * (4 * 1032**2 + 4 * 3 * 1032 * 418)
    assert hourglass.agrees is False
    change = found["hourglass_113m", "layer_params_change"]
    assert change.counted == pytest.approx(hourglass.counted / conventional.counted - 1)
    assert change.agrees
    assert change.is_share


def test_measured_losses_stand_beside_printed_ones_under_the_name_of_a_row_in_the_experiment(results):
    found = lines(results)
    difference = found["hourglass_113m", "difference"]
    assert difference.printed is None
    assert difference.printed_value == pytest.approx(3.426 - 3.464)
    assert (difference.measured.mean, difference.measured.low) == (0.25, 0.125)
    assert ("conventional_113m", "difference") not in found
    named = {"rows": {"conventional_113m": "conventional", "hourglass_113m": "k5"}}
    found = lines(results, small={**ITEM["small"], **named})
    assert found["conventional_113m", "val_loss"].measured.mean == 5.0
    assert found["hourglass_113m", "val_loss"].measured.mean == 5.25
    assert lines(results)["conventional_113m", "val_loss"].measured is None  # no variant has that name


def test_what_was_measured_without_being_printed_is_shown_where_the_item_asks(results):
    rows = {"conventional": {}, "k5": {}}
    small = {**ITEM["small"], "rows": {}}
    found = lines(results, also=["val_bits_per_byte", "difference"], printed=rows, small=small)
    assert list(found) == [("k5", "difference")]


def test_a_difference_has_one_interval_whether_it_is_printed_or_shown_besides(results):
    printed = {"conventional": {}, "k5": {"val_loss": "lower"}}
    small = {**ITEM["small"], "rows": {}}
    found = lines(results, also=["difference"], printed=printed, small=small)
    estimates = [line.measured for (row, _), line in found.items() if row == "k5" and line.measured.mean == 0.25]
    assert [(each.low, each.high) for each in estimates] == [(0.125, 0.375)] * 2
