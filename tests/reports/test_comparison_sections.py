"""Sections that a comparison has where its record holds them: tokens at equal loss, curves of shapes."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from fake_comparison import at_equal_loss, estimate, write_comparison
from page_section import change, drawn, labels, reported, rows_of, section

from widthwise.records.outcome import Outcome, Tuning
from widthwise.reports.charts import Figure, styles
from widthwise.reports.comparison_page import tuning_table
from widthwise.reports.experiment_sections import equal_loss_section
from widthwise.reports.formats import MINUS, MISSING
from widthwise.reports.main_table import csv_text, latex_text
from widthwise.reports.writing import answer, experiment_page


def with_equal_loss(folder: Path, n_fewest: int) -> Path:
    def gap(end: float) -> dict[str, Any]:
        mean = [0.5, 0.01, 0.005, end]
        ends = {"low": [m - 0.002 for m in mean], "high": [m + 0.002 for m in mean]}
        return {"val_loss": {"tokens": [2e6, 8e6, 16e6, 25e6], "mean": mean, **ends}}

    def add(data: dict[str, Any]) -> None:
        data["validations"] = {"n_fewest": n_fewest, "n_needed": 5, "final_lr_share": 0.1}
        _, x, hourglass = data["points"]
        x |= {"gap": gap(-0.0123), "tokens_ratio": gap(0.8125)}
        hourglass["gap"] = gap(0.004)
        if n_fewest >= 5:
            unknown = {"mean": None, "per_seed": [None, None]}
            worse = {"n_reached": 0, "tokens": unknown, "training_flops": unknown, "tokens_ratio": estimate(1.25, 0.1)}
            x["at_equal_loss"], hourglass["at_equal_loss"] = (
                {"val_loss": at_equal_loss(**changes)} for changes in ({}, worse)
            )

    return change(write_comparison(folder) / "outcome.json", add)


def test_page_and_tables_say_what_is_needed_for_equal_loss_and_how_far_apart_they_are(tmp_path: Path) -> None:
    files = reported(with_equal_loss(tmp_path, n_fewest=12))
    shown = section(files["html"], "tokens-at-equal-loss")
    rows = rows_of(shown)
    assert rows["x"] == ["2 of 2", "20.5M", "0.812", "0.782 to 0.843", "0.875", "0.835 to 0.915"]
    assert rows["hourglass"][:4] == ["0 of 2", MISSING, "1.250", "1.150 to 1.350"]
    assert labels(shown) == [
        "Held-out loss minus the loss of uniform, difference in nats, over tokens. Last mean value of each line: x "
        f"{MINUS}0.0123; hourglass 0.0040.",
        "Tokens to the held-out loss of uniform, times the tokens of uniform, over tokens. Last mean value of each "
        "line: x 0.8125.",
    ]
    read = Outcome.read(tmp_path)
    uniform, x, hourglass = csv.DictReader(io.StringIO(csv_text(read)))
    assert (x["tokens_at_equal_loss_mean"], x["training_flops_at_equal_loss_mean"]) == ("0.8125", "0.875")
    assert (x["tokens_to_baseline_loss_mean"], hourglass["tokens_to_baseline_loss_mean"]) == ("20500000.0", "")
    assert uniform["tokens_at_equal_loss_mean"] == ""
    asked = latex_text(read.with_changes(columns=["tokens_at_equal_loss", "training_flops_at_equal_loss"]))
    assert r"Tokens at equal loss & Training FLOPs at equal loss \\" in asked
    assert r"x & 0.812 & 0.875 \\" in asked


def test_too_few_validations_are_said_and_the_gap_is_shown(tmp_path: Path) -> None:
    outcome = Outcome.read(with_equal_loss(tmp_path, n_fewest=1))
    text, *figures = reversed(equal_loss_section(outcome, styles(["x", "hourglass"])).parts)
    assert "need 5 validations of every run, and one has 1 validation; train.validate_every" in text.lines[0]
    assert figures
    assert all(isinstance(part, Figure) for part in figures)


def test_table_and_answer_name_the_values_that_were_chosen(comparison: Path) -> None:
    about = {"sweep": "runs/rates", "identity": "f", "steps": 0.25, "seeds": [101]}
    rates = {"uniform": (0.01, 3.5, False), "hourglass": (0.08, 3.25, True)}
    variants = [
        {"name": name, "chosen": {"optimizer.lr": rate}, "val_loss": loss, "is_at_limit": is_at_limit}
        for name, (rate, loss, is_at_limit) in rates.items()
    ]
    tuning = Tuning.model_validate({**about, "variants": variants})
    assert tuning_table(tuning).rows == [
        ["uniform", "optimizer.lr 0.01", "3.5000", MISSING],
        ["hourglass", "optimizer.lr 0.08", "3.2500", "yes"],
    ]
    assert tuning_table(tuning).caption.endswith("by runs/rates: 25% of the steps, 1 seed (101)")
    beyond = "hourglass was best at an end of the grid: a better value may be outside it."
    assert beyond in answer(Outcome.read(comparison).with_changes(tuning=tuning))


SHAPES = {  # name -> n_blocks, n_layers, d_model, d_hidden, difference to the baseline
    "a": (2, 6, 96, 40, -0.011),
    "b": (2, 6, 80, 60, -0.017),
    "c": (4, 6, 88, 30, -0.023),
    "d": (4, 3, 120, 48, 0.031),
    "e": (4, 3, 128, 40, -0.002),
}


def cost_of(base: dict[str, Any], name: str) -> dict[str, Any]:
    n_blocks, n_layers, d_model, d_hidden, _ = SHAPES[name]
    sizes = {"widths": [d_model] * n_layers, "hidden_widths": [[d_hidden] * n_blocks] * n_layers, "d_model": d_model}
    return {**base, **sizes, **{key: [4] * n_layers for key in ("n_heads", "n_kv_heads", "head_dim")}}


def rows_by_name(figure: Figure) -> dict[str, list[tuple[float, float]]]:
    """Series -> positions and values of its rows on a line."""
    found: dict[str, set[tuple[float, float]]] = {}
    for row in drawn(figure.spec()):
        if row.get("line") is not None and "name" in row:
            found.setdefault(row["name"], set()).add((row["x"], round(row["y"], 4)))
    return {name: sorted(places) for name, places in found.items()}


def test_a_search_has_the_curves_of_the_paper_with_the_baseline(tmp_path: Path) -> None:
    def searched(data: dict[str, Any]) -> None:
        base, other, _ = data["points"]
        data["points"] = [base]
        for name, (*_, difference) in SHAPES.items():
            losses = {"val_loss": estimate(3.05 + difference, 0.02), "difference": estimate(difference, 0.004)}
            data["points"].append({**other, "name": name, **losses, "cost": cost_of(base["cost"], name)})

    change(write_comparison(tmp_path) / "outcome.json", searched)
    (tmp_path / "search.json").write_text("{}")
    figures = {figure.key: figure for figure in experiment_page(tmp_path, Outcome.read(tmp_path)).figures.values()}
    ratios = {name: d_hidden / d_model for name, (_, _, d_model, d_hidden, _) in SHAPES.items()}
    aspects = {name: d_model / n_layers for name, (_, n_layers, d_model, *_) in SHAPES.items()}
    for key, places, joined, axis, x in (
        ("shape-ratio", ratios, {"K = 2": "ab", "K = 4": "ecd"}, "d_hidden / d_model", "0.341"),
        ("shape-aspect", aspects, {"K = 2": "b", "K = 4": "ce"}, "d_model / n_layers", "14.67"),
    ):
        found = rows_by_name(figures[key])
        assert found.keys() == joined.keys()
        for series, names in joined.items():
            expected = sorted((places[name], 3.05 + SHAPES[name][-1]) for name in names)
            assert found[series] == [pytest.approx(point, abs=1e-4) for point in expected]
        label = figures[key].label
        assert label.startswith(f"Held-out loss over {axis}, a marker for each of 5 points.")
        assert f"The lowest is 3.0270 at {x}, of c, K = 4. The dashed line is uniform at 3.0500." in label
