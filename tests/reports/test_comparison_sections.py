"""Sections that a comparison has where its record holds them: tokens at equal loss, curves of shapes."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from fake_comparison import at_equal_loss, estimate, write_comparison
from fake_sweep import finished, sweep_data, write_sweep
from page_section import change, drawn, labels, reported, rows_of, section, specs

from widthwise.records.outcome import Outcome
from widthwise.reports.experiment import answer
from widthwise.reports.formats import MINUS, MISSING
from widthwise.reports.main_table import csv_text, latex_text


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
    shown = section(reported(with_equal_loss(tmp_path, n_fewest=1))["html"], "tokens-at-equal-loss")
    assert "Tokens to equal loss omitted" in shown
    assert "need 5 validations of every run, and one has 1 validation; train.validate_every" in shown
    assert "<table" not in shown
    assert "<figure" in shown


TUNING = {
    "sweep": "runs/rates",
    "steps": 0.25,
    "seeds": [101],
    "variants": [
        {"name": "uniform", "chosen": {"optimizer.lr": 0.01}, "val_loss": 3.5, "is_at_limit": False},
        {"name": "hourglass", "chosen": {"optimizer.lr": 0.08}, "val_loss": 3.25, "is_at_limit": True},
    ],
}
OLDER_TUNING = {
    "steps": 0.25,
    "seeds": [101],
    **{"n_runs": 11, "tokens": 1_250_000, "seconds": 7200.0},
    "variants": [{"name": "x", "chosen": {"optimizer.lr": 0.02}, "is_at_limit": False, "tried": []}],
}


@pytest.mark.parametrize(
    ("tuning", "expected", "source"),
    [
        (
            TUNING,
            {"uniform": ["optimizer.lr 0.01", "3.5000", MISSING], "hourglass": ["optimizer.lr 0.08", "3.2500", "yes"]},
            "by runs/rates: 25% of the steps, 1 seed (101)",
        ),
        (OLDER_TUNING, {"x": ["optimizer.lr 0.02", MISSING, MISSING]}, "by tuning: 25% of the steps, 1 seed (101)"),
    ],
    ids=["of a sweep", "of an older version"],
)
def test_page_and_answer_name_the_values_that_were_chosen(tmp_path: Path, tuning, expected, source) -> None:
    change(write_comparison(tmp_path) / "outcome.json", lambda data: data.update(tuning=tuning))
    shown = section(reported(tmp_path)["html"], "tuning")
    rows = rows_of(shown)
    assert {name: rows[name] for name in expected} == expected
    assert source in shown
    beyond = "hourglass was best at an end of the grid: a better value may be outside it."
    assert (beyond in answer(Outcome.read(tmp_path))) == ("hourglass" in expected)


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


def rows_by_name(page: str, figure: str, column: str) -> dict[str, list[tuple[float, float]]]:
    """Series -> places and values of the rows that have a column."""
    found: dict[str, set[tuple[float, float]]] = {}
    for row in drawn(specs(page)[figure]):
        if row.get(column) is not None and "name" in row:
            found.setdefault(row["name"], set()).add((row["x"], round(row["y"], 4)))
    return {name: sorted(places) for name, places in found.items()}


def approx(names: str, which: int, places: dict[str, tuple[float, float]], losses: dict[str, float]) -> object:
    """What is drawn of some shapes: sorted by where they stand, with their losses."""
    expected = sorted((places[name][which], losses[name]) for name in names)
    return [pytest.approx(each, abs=1e-4) for each in expected]


def test_the_page_of_a_search_has_both_curves_with_the_baseline(tmp_path: Path) -> None:
    """The last of its shapes was not trained."""

    def searched(data: dict[str, Any]) -> None:
        base, other, _ = data["points"]
        data["points"] = [base]
        for name, (*_, difference) in SHAPES.items():
            losses = {"val_loss": estimate(3.05 + difference, 0.02), "difference": estimate(difference, 0.004)}
            data["points"].append({**other, "name": name, **losses, "cost": cost_of(base["cost"], name)})

    change(write_comparison(tmp_path) / "outcome.json", searched)
    candidates = [{"name": name, "d_model": 3} for name in (*SHAPES, "f")]
    (tmp_path / "search.json").write_text(json.dumps({"match": "layer_params", "candidates": candidates}))
    page = reported(tmp_path)["html"].read_text()
    assert '<section id="shapes-at-one-budget"' in page
    ratio, aspect = (rows_by_name(page, key, "line") for key in ("shape-ratio", "shape-aspect"))
    places = {
        name: (d_hidden / d_model, d_model / n_layers) for name, (_, n_layers, d_model, d_hidden, _) in SHAPES.items()
    }
    losses = {name: 3.05 + difference for name, (*_, difference) in SHAPES.items()}
    assert ratio == {"K = 2": approx("ab", 0, places, losses), "K = 4": approx("ecd", 0, places, losses)}
    assert aspect == {"K = 2": approx("b", 1, places, losses), "K = 4": approx("ce", 1, places, losses)}
    found = [label for label in labels(page) if re.match(r"Held-out loss over d_\w+ / ", label)]
    for label, axis, x in zip(found, ("d_hidden / d_model", "d_model / n_layers"), ("0.341", "14.67"), strict=True):
        assert label.startswith(f"Held-out loss over {axis},")
        assert "a marker for each of 5 points" in label
        assert f"The lowest is 3.0270 at {x}, of c, K = 4." in label
        assert "The dashed line is uniform at 3.0500." in label


@pytest.mark.parametrize(("matched", "is_drawn"), [("layer_params", True), ("none", False)])
def test_sizes_of_a_sweep_are_drawn_where_they_have_one_budget(tmp_path: Path, matched: str, is_drawn: bool) -> None:
    data = sweep_data()
    points = [data["points"][0]]
    for name, (n_blocks, n_layers, *_, difference) in SHAPES.items():
        point = finished(name, "hg", {"model.ffn.n_blocks": n_blocks, "model.n_layers": n_layers}, difference)
        points.append({**point, "cost": cost_of(point["cost"], name)})
    axes = {"hg": {"model.ffn.n_blocks": [2, 4], "model.n_layers": [3, 6]}}
    study = {**data["study"], "n_points": 6, "n_finished": 6, "n_failed": 0}
    write_sweep(tmp_path, {**data, "points": points, "axes": axes, "study": study, "matched": matched})
    page = reported(tmp_path)["html"].read_text()
    assert ('id="shapes-at-one-budget"' in page) == is_drawn
    assert ("Held-out loss over d_hidden / d_model" in page) == is_drawn
