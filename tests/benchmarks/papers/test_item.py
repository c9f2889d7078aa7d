"""Items of the papers: all can be read and plan the work that they say; what their lines hold; when a number agrees."""

import json
from pathlib import Path

import pytest
from boxes import refusal
from hypothesis import given
from hypothesis import strategies as st
from papers.item import Item, item_record, parse_printed, read_items
from papers.numbers import OF_RECIPES
from papers.record import PaperLine
from small_costs import small_variant
from thinned import hard_but

from widthwise.config_io import parse
from widthwise.evaluation.estimate import seed_interval
from widthwise.experiments.equal_loss import FEWEST_VALIDATIONS
from widthwise.records.estimate import Estimate
from widthwise.records.outcome import Outcome
from widthwise.records.quantities import MODEL_COSTS
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


def lines_of(item: Item, results: Path = Path()) -> dict[tuple[str, str], PaperLine]:
    """Row and quantity -> its line, without measurements unless a folder of results has some."""
    return {(line.row, line.quantity): line for line in item_record("item", item, results, scales=("small",)).lines}


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
    lines = lines_of(item)
    assert bool(lines) == any(item.printed.values())
    wrong = [line for line in lines.values() if line.agrees is False]
    assert item.remarks or not wrong, wrong
    costs = {quantity for row in item.printed.values() for quantity in row} & (OF_RECIPES.keys() | MODEL_COSTS.keys())
    if item.sizes and costs:
        assert any(line.counted is not None for line in lines.values())


def test_every_loss_perplexity_and_task_of_the_hourglass_paper_is_a_row():
    tables = json.loads((Path(__file__).parents[2] / "data_files" / "hourglass_tables.json").read_text())
    sizes = {"model", "size_M", "d_model", "d_h", "K", "L", "ratio", "attn_M", "ffn_M", "loss", "ppl"}
    for number in (1, 2, 4, 5, 6, 8):
        expected, rows = [], []
        for row in tables[f"table{number}"]:
            scores = [value for key, value in row.items() if key not in sizes]
            expected.append(sorted([*scores, *row.get("loss", {}).values(), *row.get("ppl", {}).values()]))
        for row in ITEMS[f"hourglass_table_{number}"].printed.values():
            rows.append(sorted(finite(printed.number) for printed in row.values() if "M" not in printed.text))
        assert sorted(rows) == sorted(expected)


def test_the_costs_of_experts_virtual_and_dynamic_widths_are_those_of_the_formulas():
    def counted(name: str, row: str, *quantities: str) -> list[float | None]:
        lines = lines_of(ITEMS[name])
        return [lines[row, quantity].counted for quantity in quantities]

    experts = counted("variable_width_table_1", "uniform_moe_3b", "n_experts", "top_k", "d_expert", "batch_size")
    assert experts == [22, 3, 512, 4096 * 1024 // 4096]
    m, n, r = 2, 3, 3 / 2
    quantities = ("width_connection_flops", "depth_connection_flops", "residual_activation_bytes")
    expected = [4 * r + 2 * (2 * m + n) * r + 2 * (m + n) * r, 2 * n, 8 * r / 2 + 4]
    assert counted("virtual_width_section_3_5", "vwn", *quantities) == pytest.approx(expected)
    own, base = (finite(*counted("dynamic_width_table_1", row, "memory_gb")) for row in ("dw_ffn", "swiglu"))
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


def test_what_follows_from_the_size_is_counted_and_held_against_the_printed_digits():
    lines = lines_of(parse(Item, ITEM, "item"))
    assert lines["conventional_113m", "seq_len"].counted == 2048
    conventional, hourglass = (lines[f"{name}_113m", "layer_params"] for name in ("conventional", "hourglass"))
    assert (conventional.counted, conventional.agrees) == (12 * (4 * 768**2 + 3 * 768 * 3072), True)
    assert (hourglass.counted, hourglass.agrees) == (12 * (4 * 1032**2 + 4 * 3 * 1032 * 418), False)
    change = lines["hourglass_113m", "layer_params_change"]
    assert change.counted == pytest.approx(hourglass.counted / conventional.counted - 1)
    assert (change.agrees, change.is_share) == (True, True)


def test_measured_losses_stand_beside_printed_ones_under_the_name_of_a_row_in_the_experiment(tmp_path):
    about = {"title": "small", "command": "none", "created": "now", "environment": {}, "seeds": [1, 2]}
    difference = Estimate(mean=0.25, low=0.125, high=0.375, per_seed=[0.25, 0.25])
    variants = [
        small_variant(name="conventional", val_loss=Estimate(mean=5.0, per_seed=[5.0, 5.0])),
        small_variant(name="k5", val_loss=Estimate(mean=5.25, per_seed=[5.25, 5.25]), difference=difference),
    ]
    outcome = Outcome(**about, confidence=0.95, baseline="conventional", points=variants)
    outcome.write(tmp_path / "hourglass_table_1_small")
    lines = lines_of(parse(Item, ITEM, "item"), tmp_path)
    line = lines["hourglass_113m", "difference"]
    assert (line.printed, line.printed_value) == (None, pytest.approx(3.426 - 3.464))
    assert (line.measured.mean, line.measured.low) == (0.25, 0.125)
    assert ("conventional_113m", "difference") not in lines
    assert lines["conventional_113m", "val_loss"].measured is None  # no variant has that name
    small = ITEM["small"] | {"rows": {"conventional_113m": "conventional", "hourglass_113m": "k5"}}
    lines = lines_of(parse(Item, {**ITEM, "small": small}, "item"), tmp_path)
    assert [lines[row, "val_loss"].measured.mean for row in small["rows"]] == [5.0, 5.25]


def test_the_digits_say_how_exactly_a_number_is_known_and_anything_else_is_refused():
    known = {"3.430": (3.43, 0.0005), "113M": (113e6, 0.5e6), "-3.2%": (-0.032, 0.0005), "+4.16": (4.16, 0.005)}
    for text, expected in known.items():
        printed = parse_printed(text)
        assert (printed.number, printed.half_unit) == pytest.approx(expected, rel=1e-12)
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
