"""Every item of the papers can be read, and its recipes plan the work they say."""

import json
import math
import re
from pathlib import Path
from statistics import fmean

import pytest

from widthwise.bundled import papers_folder, recipe_path
from widthwise.config_io import UserError, parse
from widthwise.experiments.equal_loss import FEWEST_VALIDATIONS
from widthwise.experiments.papers.comparing import Comparing
from widthwise.experiments.papers.item import PAPERS, Item, read_item, read_items
from widthwise.experiments.papers.lines import item_record
from widthwise.experiments.papers.sizes import OF_RECIPES
from widthwise.experiments.variants import read_all
from widthwise.records.comparison import Comparison
from widthwise.records.quantities import OF_MODELS
from widthwise.records.record import finite
from widthwise.reports.paper.markdown import all_items
from widthwise.training.observer import Silence

ITEMS = read_items()
SMALL = {item.small.name: name for name, item in ITEMS.items() if item.small is not None}
"""Experiment -> one of the items that it is for."""
DATA = {
    "paper": "hourglass",
    "where": "Table 0",
    "title": "none",
    "finds": "nothing",
    "printed": {"a": {"val_loss": "3.5"}, "b": {"val_loss": "3.25"}, "c": {"val_loss": "3.4"}},
}


def test_items_stand_paper_by_paper_and_tables_in_order():
    papers = [list(PAPERS).index(item.paper) for item in ITEMS.values()]
    assert papers == sorted(papers)
    for paper in PAPERS:
        tables = [re.fullmatch(r"\w+_table_(\d+)", name) for name, item in ITEMS.items() if item.paper == paper]
        numbers = [int(table[1]) for table in tables if table is not None]
        assert numbers == sorted(numbers)


def test_an_unknown_item_is_answered_with_the_nearest():
    with pytest.raises(UserError, match="hourglass_table_2"):
        read_item("hourglass_tabel_2")


def test_losses_are_subtracted_from_the_first_row_unless_the_item_says_otherwise():
    item = parse(Item, DATA, "item")
    assert [item.baseline_of(row) for row in "abc"] == [None, "a", "a"]
    paired = parse(Item, {**DATA, "baselines": {"c": "b"}}, "item")
    assert [paired.baseline_of(row) for row in "abc"] == [None, None, "b"]
    chained = parse(Item, {**DATA, "baselines": {"b": "a", "c": "b"}}, "item")
    assert [chained.baseline_of(row) for row in "abc"] == [None, "a", "b"]


@pytest.mark.parametrize(
    "change", [{"baselines": {"c": "d"}}, {"printed": {"a": {"val_loss": "three"}}}, {"where": None}]
)
def test_a_mistake_in_an_item_is_named(change):
    with pytest.raises(UserError, match="item"):
        parse(Item, {**DATA, **change}, "item")


@pytest.mark.parametrize("name", ITEMS)
def test_what_can_be_counted_at_the_paper_s_size_agrees_or_is_remarked(name):
    item = ITEMS[name]
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
    if item.sizes is not None and costs:
        assert record.n_counted


def printed(name: str) -> list[list[str]]:
    """The numbers of every row of an item, as they are printed."""
    return [list(own.values()) for own in ITEMS[name].printed.values()]


def counted(name: str) -> dict[tuple[str, str], float | None]:
    record = item_record(name, ITEMS[name], Path(), scales=())
    return {(line.row, line.quantity): line.counted for line in record.lines}


@pytest.mark.parametrize("number", [1, 2, 4, 5, 6, 8])
def test_every_loss_perplexity_and_task_of_the_hourglass_paper_is_a_row(number):
    tables = json.loads((Path(__file__).parents[2] / "data_files" / "hourglass_tables.json").read_text())
    sizes = {"model", "size_M", "d_model", "d_h", "K", "L", "ratio", "attn_M", "ffn_M", "loss", "ppl"}
    flat = [
        {**row, **{(key, text): n for key in ("loss", "ppl") for text, n in row.get(key, {}).items()}}
        for row in tables[f"table{number}"]
    ]
    expected = [sorted(value for key, value in row.items() if key not in sizes) for row in flat]
    found = [sorted(float(text) for text in row if "M" not in text) for row in printed(f"hourglass_table_{number}")]
    assert sorted(found) == sorted(expected)


def test_the_tasks_of_the_variable_width_paper_have_the_mean_that_it_prints():
    for own in ITEMS["variable_width_table_3"].printed.values():
        names = list(own)
        tasks = names[names.index("arc_challenge") : names.index("mean_accuracy")]
        assert len(tasks) == 11
        assert fmean(float(own[task]) for task in tasks) == pytest.approx(float(own["mean_accuracy"]), abs=0.051)


def test_the_options_of_experts_are_counted():
    found = counted("variable_width_table_1")
    options = ("n_experts", "top_k", "d_expert", "batch_size")
    assert [found["uniform_moe_3b", option] for option in options] == [22, 3, 512, 4096 * 1024 // 4096]


def test_the_perplexities_of_the_introduction_are_those_of_the_losses_of_table_2():
    rows = ITEMS["variable_width_table_2"].printed
    pairs = [(f"x_{size}", f"uniform_{size}") for size in ("200m", "500m", "1b", "2b")]
    changes = [math.exp(float(rows[x]["train_loss"]) - float(rows[base]["train_loss"])) - 1 for x, base in pairs]
    (remark,) = ITEMS["variable_width_section_1"].remarks
    assert ", ".join(f"{100 * change:.1f}" for change in changes[:-1]) in remark
    assert f"{100 * changes[-1]:.1f} percent of perplexity and {100 * fmean(changes):.1f} percent on average" in remark
    ((claim, *_),) = printed("variable_width_section_1")
    assert claim == f"{100 * fmean(changes):.0f}%"


def test_the_costs_of_a_virtual_width_are_those_of_the_formulas():
    m, n, found = 2, 3, counted("virtual_width_section_3_5")
    r = n / m
    assert found["vwn", "width_connection_flops"] == pytest.approx(4 * r + 2 * (2 * m + n) * r + 2 * (m + n) * r)
    assert found["vwn", "depth_connection_flops"] == pytest.approx(2 * n)
    assert found["vwn", "residual_activation_bytes"] == pytest.approx(8 * r / 2 + 4)


def test_memory_of_the_dynamic_width_is_that_of_its_widths_and_weights():
    found = counted("dynamic_width_table_1")
    own, base = (found[row, "memory_gb"] for row in ("dw_ffn", "swiglu"))
    assert own is not None
    assert base is not None
    widths, weights = 4 * 8 * 2048, 16 * (2 * 512 + 2)  # fp32; of weights, gradients and two averages, too
    assert 1e9 * (own - base) == pytest.approx(18 * (widths + weights), rel=0.01)


def test_a_virtual_width_with_a_second_token_is_compared_with_the_second_token_alone():
    root = papers_folder().parents[1] / "benchmarks" / "results"
    losses = {
        each.name: finite(each.val_loss.mean)
        for each in Comparison.read(root / "virtual_width_figure_4_small").variants
    }
    for name, base in (("virtual_width_figure_4", "mtp"), ("virtual_width_figure_5", "base")):
        lines = item_record(name, ITEMS[name], root).lines
        (found,) = (line for line in lines if (line.row, line.quantity) == ("vwn_mtp", "difference"))
        assert found.measured is not None
        assert found.measured.mean == pytest.approx(losses["vwn_mtp"] - losses[base], abs=1e-12)


def test_the_rate_behind_figure_1_of_the_virtual_width_paper_is_constant():
    for recipe in read_all(recipe_path("virtual_width_figure_1")).recipes.values():
        warmup, last = recipe.schedule.warmup_steps, recipe.train.steps
        factors = {recipe.schedule.factor(step, recipe.optimizer.lr, last, 1) for step in (warmup, 2 * warmup, last)}
        assert factors == {1.0}


@pytest.mark.parametrize("name", ITEMS)
def test_the_experiments_of_an_item_can_be_trained_and_hold_its_rows(name):
    item = ITEMS[name]
    for experiment in item.experiments.values():
        assert experiment.workload
        assert set(experiment.rows) <= set(item.printed)


@pytest.mark.parametrize("name", [name for name, item in ITEMS.items() if "tokens_at_equal_loss" in item.also])
def test_an_experiment_that_is_to_find_tokens_at_equal_loss_is_validated_often_enough(name):
    small = ITEMS[name].small
    assert isinstance(small, Comparing)
    for recipe in small.plan.recipes.values():
        assert recipe.train.validate_every is not None
        assert recipe.train.steps // recipe.train.validate_every >= FEWEST_VALIDATIONS


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL.values())
def test_the_tiny_experiment_of_an_item_measures_what_the_small_one_would(name, tmp_path):
    item = ITEMS[name]
    assert item.small is not None
    item.small.tiny.run(tmp_path / item.small.tiny.name, Silence(), 1)
    record = item_record(name, item, tmp_path)
    assert record.experiment is not None
    assert record.experiment.scale == "tiny"
    assert record.n_measured


def test_the_page_in_the_documentation_is_what_the_items_and_results_make():
    root = papers_folder().parents[1]
    records = [item_record(name, item, root / "benchmarks" / "results") for name, item in ITEMS.items()]
    assert (root / "docs" / "papers.md").read_text() == all_items(records)
