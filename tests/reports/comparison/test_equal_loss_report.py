"""Tokens at equal loss and the gap over training, on the page and in tables."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from fake_comparison import at_equal_loss, estimate, write_comparison
from page_section import section

from widthwise.config_io import UserError
from widthwise.records.comparison import Comparison
from widthwise.reports.comparison.export import csv_text, latex_text
from widthwise.reports.comparison.report import write_comparison_report

TOKENS = [2e6, 8e6, 16e6, 25e6]
UNKNOWN = {"mean": None, "per_seed": [None, None]}


WORSE = at_equal_loss(n_reached=0, tokens=UNKNOWN, training_flops=UNKNOWN, tokens_ratio=estimate(1.25, 0.1))


def gap(end: float) -> dict[str, Any]:
    mean = [0.5, 0.01, 0.005, end]
    return {"tokens": TOKENS, "mean": mean, "low": [m - 0.002 for m in mean], "high": [m + 0.002 for m in mean]}


def write(folder: Path, n_fewest: int = 12, share: float | None = 0.1, loss: str = "val_loss") -> Path:
    write_comparison(folder)
    data = json.loads((folder / "comparison.json").read_text())
    data["validations"] = {"n_fewest": n_fewest, "n_needed": 5, "final_lr_share": share}
    _, x, hourglass = data["variants"]
    x["gap"], hourglass["gap"] = {loss: gap(-0.0123)}, {loss: gap(0.004)}
    x["tokens_ratio"] = {loss: gap(0.8125)}
    if n_fewest >= 5:
        x["at_equal_loss"], hourglass["at_equal_loss"] = {loss: at_equal_loss()}, {loss: WORSE}
    (folder / "comparison.json").write_text(json.dumps(data))
    return folder


def shown_in(folder: Path) -> str:
    return section(write_comparison_report(folder)["html"], "equal-loss")


def test_the_page_says_what_is_needed_and_how_far_apart_they_are(tmp_path: Path) -> None:
    shown = shown_in(write(tmp_path))
    for cells in (
        ("x", "2 of 2", "20.5M", "0.812", "0.782 to 0.843", "0.875", "0.835 to 0.915"),
        ("hourglass", "0 of 2", "–", "1.250", "1.150 to 1.350"),  # noqa: RUF001
    ):
        first, *others = cells
        assert f'<th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in others) in shown
    assert re.findall(r'aria-label="([^"]*)" class="plot"', shown) == [
        "Held-out loss minus that of uniform, difference in nats, over tokens. At the end of each line: x −0.0123; "  # noqa: RUF001
        "hourglass 0.0040.",
        "Tokens to the held-out loss of uniform, times those of uniform, over tokens. At the end of each line: x "
        "0.8125.",
    ]


def test_the_page_says_what_the_schedule_does_to_the_numbers(tmp_path: Path) -> None:
    falling = shown_in(write(tmp_path / "falling"))
    assert "The learning rate fell to 0.1 of its highest." in falling
    assert "nearer to 1 than those of runs with a schedule of their own" in falling
    constant = shown_in(write(tmp_path / "constant", share=1.0))
    assert "The learning rate did not fall" in constant
    assert "The learning rate" not in shown_in(write(tmp_path / "unknown", share=None))


def test_too_few_validations_are_said_and_the_gap_is_shown(tmp_path: Path) -> None:
    shown = shown_in(write(tmp_path, n_fewest=1))
    assert "Too few validations" in shown
    assert "takes 5 of every run, and one has 1 validation. train.validate_every" in shown
    assert "<table" not in shown
    assert 'class="plot"' in shown


def test_further_heads_have_a_table_and_a_figure_of_their_own(tmp_path: Path) -> None:
    shown = shown_in(write(tmp_path, loss="val_loss_next_2"))
    assert "To the final next-2 held-out loss of uniform" in shown
    assert "Next-2 held-out loss minus that of uniform" in shown


def test_tables_hold_the_ratios(tmp_path: Path) -> None:
    read = Comparison.read(write(tmp_path))
    uniform, x, hourglass = csv.DictReader(io.StringIO(csv_text(read)))
    assert (x["tokens_at_equal_loss_mean"], x["training_flops_at_equal_loss_mean"]) == ("0.8125", "0.875")
    assert (x["tokens_to_baseline_loss_mean"], hourglass["tokens_to_baseline_loss_mean"]) == ("20500000.0", "")
    assert uniform["tokens_at_equal_loss_mean"] == ""
    assert "Tokens at equal loss & Training FLOPs at equal loss &" in latex_text(read)
    assert "0.812 & 0.875 &" in latex_text(read)


def test_a_comparison_of_an_older_version_has_no_such_section(comparison: Path, tmp_path: Path) -> None:
    assert "equal-loss" not in write_comparison_report(comparison, tmp_path)["html"].read_text()


def test_a_gap_of_unequal_lists_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path)
    data = json.loads((folder / "comparison.json").read_text())
    data["variants"][1]["gap"]["val_loss"]["mean"].pop()
    (folder / "comparison.json").write_text(json.dumps(data))
    with pytest.raises(UserError, match="tokens, mean, low and high: differ in length"):
        write_comparison_report(folder)
