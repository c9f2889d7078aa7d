"""The lines of an item: what is printed, what the recipes count, what an experiment left behind."""

from pathlib import Path

import pytest
from small_costs import small_cost

from widthwise.config_io import parse
from widthwise.experiments.papers.item import Item
from widthwise.experiments.papers.lines import item_record
from widthwise.records.comparison import Comparison, Variant
from widthwise.records.estimate import Estimate

ITEM = {
    "paper": "hourglass",
    "where": "Table 0",
    "title": "two models",
    "finds": "nothing",
    "sizes": {"recipes": ["conventional_113m", "hourglass_113m"]},
    "small": {"kind": "compare", "recipe": "hourglass_table_1_small", "rows": {"hourglass_113m": "k5"}},
    "printed": {
        "conventional_113m": {"layer_params": "113M", "seq_len": "2048", "val_loss": "3.464"},
        "hourglass_113m": {"layer_params": "114M", "layer_params_change": "-0.0%", "val_loss": "3.426"},
    },
}


def variant(name: str, loss: float, difference: Estimate | None) -> Variant:
    measured = Estimate(mean=loss, low=loss - 0.1, high=loss + 0.1, per_seed=[loss, loss])
    return Variant(
        name=name,
        runs=["run"],
        val_loss=measured,
        difference=difference,
        cost=small_cost(params={"total": 1000}),
        ratio={},
    )


@pytest.fixture
def results(tmp_path: Path) -> Path:
    difference = Estimate(mean=0.25, low=0.125, high=0.375, per_seed=[0.25, 0.25])
    Comparison(
        title="small",
        command="none",
        created="now",
        metric="val_loss",
        confidence=0.95,
        seeds=[1, 2],
        baseline="conventional",
        sentence="",
        environment={},
        variants=[variant("conventional", 5.0, None), variant("k5", 5.25, difference)],
    ).write(tmp_path / "hourglass_table_1_small")
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


def test_losses_are_neither_counted_nor_measured_where_nothing_was_trained(tmp_path):
    record = item_record("item", parse(Item, ITEM, "item"), tmp_path)
    loss = next(line for line in record.lines if line.quantity == "val_loss")
    assert (loss.counted, loss.agrees, loss.measured) == (None, None, None)
    assert record.experiment is None
    assert [each.split(":")[0] for each in record.other_scales] == ["--scale small", "--scale tiny"]


def test_the_difference_of_printed_losses_stands_beside_the_measured_one(results):
    found = lines(results)
    difference = found["hourglass_113m", "difference"]
    assert difference.printed is None
    assert difference.printed_value == pytest.approx(3.426 - 3.464)
    assert (difference.measured.mean, difference.measured.low) == (0.25, 0.125)
    assert ("conventional_113m", "difference") not in found


def test_a_row_is_measured_under_its_name_in_the_experiment(results):
    named = {"rows": {"conventional_113m": "conventional", "hourglass_113m": "k5"}}
    found = lines(results, small={**ITEM["small"], **named})
    assert found["conventional_113m", "val_loss"].measured.mean == 5.0
    assert found["hourglass_113m", "val_loss"].measured.mean == 5.25
    assert lines(results)["conventional_113m", "val_loss"].measured is None  # no variant has that name


def test_the_experiment_is_described_by_its_size_and_seeds(results):
    record = item_record("item", parse(Item, ITEM, "item"), results)
    assert record.experiment.scale == "small"
    assert (record.experiment.fewest_params, record.experiment.n_seeds) == (1000, 2)
    assert record.experiment.command == "widthwise paper item --scale small"
    assert [each.split(":")[0] for each in record.other_scales] == ["--scale tiny"]


def test_what_was_measured_without_being_printed_is_shown_where_the_item_asks(results):
    rows = {"conventional": {}, "k5": {}}
    small = {**ITEM["small"], "rows": {}}
    found = lines(results, also=["val_bits_per_byte", "difference"], printed=rows, small=small)
    assert list(found) == [("k5", "difference")]
