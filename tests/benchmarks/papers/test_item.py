"""Items of the papers: all can be read and plan the work that they say; what their lines hold; when a number agrees."""

import json
from pathlib import Path

import pytest
from boxes import refusal
from hypothesis import given
from hypothesis import strategies as st
from papers.item import Item, item_record, parse_printed, read_items
from papers.numbers import OF_RECIPES
from small_costs import small_variant
from thinned import hard_but

from widthwise.config_io import parse
from widthwise.evaluation.estimate import seed_interval
from widthwise.experiments.equal_loss import FEWEST_VALIDATIONS
from widthwise.records.estimate import Estimate
from widthwise.records.outcome import Outcome, Variant
from widthwise.records.quantities import OF_MODELS
from widthwise.records.record import finite
from widthwise.training.observer import SilentObserver

ITEMS = read_items()
ONE_OF_EACH_PAPER = list({item.paper: name for name, item in ITEMS.items()}.values())
SMALL = {type(item.small): name for name, item in ITEMS.items() if item.small is not None}
"""Kind of experiment -> one of the items that have one."""
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


def test_losses_are_subtracted_from_the_first_row_unless_the_item_says_otherwise():
    data = {**ITEM, "small": None, "printed": {row: {"val_loss": "3.5"} for row in "abc"}}
    for baselines, expected in (
        ({}, [None, "a", "a"]),
        ({"c": "b"}, [None, None, "b"]),
        ({"b": "a", "c": "b"}, [None, "a", "b"]),
    ):
        item = parse(Item, {**data, "baselines": baselines}, "item")
        assert [item.baseline_of(row) for row in "abc"] == expected
    for change in ({"baselines": {"c": "d"}}, {"printed": {"a": {"val_loss": "three"}}}):
        assert refusal(parse, Item, {**data, **change}, "item").startswith("item")


@pytest.mark.parametrize("name", hard_but(ONE_OF_EACH_PAPER, ITEMS))
def test_what_can_be_counted_at_the_paper_s_size_agrees_or_is_remarked_and_experiments_hold_the_rows(name):
    """And an experiment that is to find tokens at equal loss is validated often enough."""
    item = ITEMS[name]
    for experiment in item.experiments.values():
        assert experiment.workload
        assert set(experiment.rows) <= set(item.printed)
    if "tokens_at_equal_loss" in item.also:
        for train in (recipe.train for recipe in item.small.plan.recipes.values()):
            assert train.steps // train.validate_every >= FEWEST_VALIDATIONS
    record = item_record(name, item, Path(), scales=())
    assert bool(record.lines) == any(item.printed.values())
    wrong = [
        f"{line.row}: {line.quantity} is {line.counted}, printed {line.printed}"
        for line in record.lines
        if line.agrees is False
    ]
    if wrong:
        assert item.remarks, wrong
    costs = {quantity for row in item.printed.values() for quantity in row} & (OF_RECIPES.keys() | OF_MODELS.keys())
    if item.sizes and costs:
        assert any(line.counted is not None for line in record.lines)


def counted(name: str) -> dict[tuple[str, str], float | None]:
    record = item_record(name, ITEMS[name], Path(), scales=())
    return {(line.row, line.quantity): line.counted for line in record.lines}


def test_every_loss_perplexity_and_task_of_the_hourglass_paper_is_a_row():
    tables = json.loads((Path(__file__).parents[2] / "data_files" / "hourglass_tables.json").read_text())
    sizes = {"model", "size_M", "d_model", "d_h", "K", "L", "ratio", "attn_M", "ffn_M", "loss", "ppl"}
    for number in (1, 2, 4, 5, 6, 8):
        flat = [
            {**row, **{(key, text): n for key in ("loss", "ppl") for text, n in row.get(key, {}).items()}}
            for row in tables[f"table{number}"]
        ]
        expected = [sorted(value for key, value in row.items() if key not in sizes) for row in flat]
        rows = [own.values() for own in ITEMS[f"hourglass_table_{number}"].printed.values()]
        assert sorted(sorted(finite(each.number) for each in row if "M" not in each.text) for row in rows) == sorted(
            expected
        )


def test_the_costs_of_experts_virtual_and_dynamic_widths_are_those_of_the_formulas():
    experts = counted("variable_width_table_1")
    options = ("n_experts", "top_k", "d_expert", "batch_size")
    assert [experts["uniform_moe_3b", option] for option in options] == [22, 3, 512, 4096 * 1024 // 4096]
    m, n, found = 2, 3, counted("virtual_width_section_3_5")
    r = n / m
    assert found["vwn", "width_connection_flops"] == pytest.approx(4 * r + 2 * (2 * m + n) * r + 2 * (m + n) * r)
    assert found["vwn", "depth_connection_flops"] == pytest.approx(2 * n)
    assert found["vwn", "residual_activation_bytes"] == pytest.approx(8 * r / 2 + 4)
    memory = counted("dynamic_width_table_1")
    own, base = (finite(memory[row, "memory_gb"]) for row in ("dw_ffn", "swiglu"))
    widths, weights = 4 * 8 * 2048, 16 * (2 * 512 + 2)  # fp32; of weights, gradients and two averages, too
    assert 1e9 * (own - base) == pytest.approx(18 * (widths + weights), rel=0.01)


@pytest.mark.hard
@pytest.mark.parametrize("name", SMALL.values())
def test_the_tiny_experiment_of_an_item_measures_what_the_small_one_would(name, tmp_path):
    item = ITEMS[name]
    item.small.tiny.run(tmp_path / item.small.tiny.name, SilentObserver(), 1)
    record = item_record(name, item, tmp_path)
    assert record.experiment.scale == "tiny"
    assert record.n_measured


def variant(name: str, loss: float, difference: Estimate | None) -> Variant:
    measured = Estimate(mean=loss, low=loss - 0.1, high=loss + 0.1, per_seed=[loss, loss])
    return small_variant(name=name, val_loss=measured, difference=difference)


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
