"""How the main table is divided on a page."""

from pathlib import Path

import pytest
from fake_comparison import write_full_comparison
from markupsafe import Markup

from widthwise.records.comparison import Comparison
from widthwise.reports.comparison.main_table import main_columns, main_tables, notes, with_columns
from widthwise.reports.comparison.report import write_comparison_report

SWATCHES = [Markup()] * 3


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_full_comparison(tmp_path_factory.mktemp("full"))


def test_losses_and_costs_have_a_table_each_and_none_is_lost(full: Path) -> None:
    comparison = Comparison.read(full)
    losses, costs = main_tables(comparison, "Each variant", SWATCHES)
    assert {quantity.name for _, quantity in losses.columns} == {
        *("val_loss", "difference", "val_loss_next_2", "difference_next_2", "train_loss", "val_bits_per_byte"),
        *("tokens_at_equal_loss", "training_flops_at_equal_loss"),
    }
    assert {"params", "flops", "tokens_per_second", "peak_memory_bytes"} <= {each.name for _, each in costs.columns}
    numbered = dict([*losses.columns, *costs.columns])
    assert [numbered[number] for number in sorted(numbered)] == main_columns(comparison)
    assert sorted(numbered) == list(range(1, len(numbered) + 1))


def test_each_number_above_a_column_is_that_of_its_note(full: Path) -> None:
    comparison = Comparison.read(full)
    told = notes(comparison)
    page = write_comparison_report(full)["html"].read_text(encoding="utf-8")
    for table in main_tables(comparison, "", SWATCHES):
        for number, quantity in table.columns:
            title = quantity.title[:1].upper() + quantity.title[1:]
            assert f'{title}<sup><a href="#note-{number}"' in page
    verdict = next(i for i, note in enumerate(told, start=1) if note.startswith("Better or worse"))
    assert f'Verdict<sup><a href="#note-{verdict}"' in page


def test_columns_that_were_asked_for_stay_together_in_their_order(full: Path) -> None:
    names = ["params", "val_loss", "flops", "tokens_at_equal_loss"]
    (table,) = main_tables(with_columns(Comparison.read(full), names), "Each variant", SWATCHES)
    assert [quantity.name for _, quantity in table.columns] == names
    assert [[quantity.name for quantity, _ in row.cells] for row in table.rows] == [names] * 3
