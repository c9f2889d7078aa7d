"""Every item of the papers can be read, and its recipes plan the work they say."""

import json
from pathlib import Path

import pytest

from widthwise.config_io import UserError, parse
from widthwise.experiments.equal_loss import FEWEST_VALIDATIONS
from widthwise.experiments.papers.item import Item, item_record, read_items
from widthwise.experiments.papers.numbers import OF_RECIPES
from widthwise.experiments.papers.work import ComparisonWork
from widthwise.records.quantities import OF_MODELS
from widthwise.records.record import finite
from widthwise.reports.paper import all_items
from widthwise.training.observer import SilentObserver
from widthwise.yaml_io import papers_folder

ITEMS = read_items()
SMALL = {type(item.small): name for name, item in ITEMS.items() if item.small is not None}
"""Kind of experiment -> one of the items that have one."""
DATA = {
    "paper": "hourglass",
    "where": "Table 0",
    "title": "none",
    "finds": "nothing",
    "printed": {"a": {"val_loss": "3.5"}, "b": {"val_loss": "3.25"}, "c": {"val_loss": "3.4"}},
}


def test_losses_are_subtracted_from_the_first_row_unless_the_item_says_otherwise():
    item = parse(Item, DATA, "item")
    assert [item.baseline_of(row) for row in "abc"] == [None, "a", "a"]
    paired = parse(Item, {**DATA, "baselines": {"c": "b"}}, "item")
    assert [paired.baseline_of(row) for row in "abc"] == [None, None, "b"]
    chained = parse(Item, {**DATA, "baselines": {"b": "a", "c": "b"}}, "item")
    assert [chained.baseline_of(row) for row in "abc"] == [None, "a", "b"]
    for change in ({"baselines": {"c": "d"}}, {"printed": {"a": {"val_loss": "three"}}}):
        with pytest.raises(UserError, match="item"):
            parse(Item, {**DATA, **change}, "item")


@pytest.mark.parametrize("name", ITEMS)
def test_what_can_be_counted_at_the_paper_s_size_agrees_or_is_remarked_and_experiments_hold_the_rows(name):
    """And an experiment that is to find tokens at equal loss is validated often enough."""
    item = ITEMS[name]
    for experiment in item.experiments.values():
        assert experiment.workload
        assert set(experiment.rows) <= set(item.printed)
    if "tokens_at_equal_loss" in item.also:
        assert isinstance(item.small, ComparisonWork)
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
    assert item.small is not None
    item.small.tiny.run(tmp_path / item.small.tiny.name, SilentObserver(), 1)
    record = item_record(name, item, tmp_path)
    assert record.experiment is not None
    assert record.experiment.scale == "tiny"
    assert record.n_measured


def test_the_page_in_the_documentation_is_what_the_items_and_results_make():
    root = papers_folder().parents[1]
    records = [item_record(name, item, root / "benchmarks" / "results") for name, item in ITEMS.items()]
    assert (root / "docs" / "papers.md").read_text() == all_items(records)
