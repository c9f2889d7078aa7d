"""Every item of the papers can be read, and its recipes plan the work they say."""

import re
from pathlib import Path

import pytest

from widthwise.bundled import papers_folder
from widthwise.config_io import UserError, parse
from widthwise.experiments.equal_loss import FEWEST_VALIDATIONS
from widthwise.experiments.papers.comparing import Comparing
from widthwise.experiments.papers.item import PAPERS, Item, read_item, read_items
from widthwise.experiments.papers.lines import item_record
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
    if item.sizes is not None:
        assert record.n_counted


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
