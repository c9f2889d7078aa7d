"""The curves of shapes at one budget: which variants they show, which of them a line joins, and the baseline."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fake_comparison import estimate, write_comparison
from fake_sweep import finished, sweep_data, write_sweep

from widthwise.records.comparison import Comparison
from widthwise.records.estimate import Estimate
from widthwise.reports.comparison.report import write_comparison_report
from widthwise.reports.comparison.shape_curves import Stack, _over_aspect, _over_ratio, shape_curves
from widthwise.reports.sweep.report import write_sweep_report

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
    heads = {key: [4] * n_layers for key in ("n_heads", "n_kv_heads", "head_dim")}
    return {**base, **sizes, **heads}


@pytest.fixture
def searched(tmp_path: Path) -> Path:
    """A comparison of what a search found; the last of its shapes was not trained."""
    write_comparison(tmp_path)
    data = json.loads((tmp_path / "comparison.json").read_text())
    base, other, _ = data["variants"]
    variants = [base]
    for name, (*_, difference) in SHAPES.items():
        losses = {"val_loss": estimate(3.05 + difference, 0.02), "difference": estimate(difference, 0.004)}
        variants.append({**other, "name": name, **losses, "cost": cost_of(base["cost"], name)})
    (tmp_path / "comparison.json").write_text(json.dumps({**data, "variants": variants}))
    candidates = [{"name": name, "d_model": 3} for name in (*SHAPES, "f")]
    (tmp_path / "search.json").write_text(json.dumps({"match": "layer_params", "candidates": candidates}))
    return tmp_path


def stack(n_blocks: int, n_layers: int, d_model: int, d_hidden: int, loss: float) -> Stack:
    return Stack(f"{n_blocks}-{n_layers}-{d_model}", n_blocks, n_layers, d_model, d_hidden, Estimate(mean=loss))


STACKS = {name: stack(*sizes, 3.05 + difference) for name, (*sizes, difference) in SHAPES.items()}


def names_of(lines: Any) -> list[tuple[int, str]]:
    names = {id(stack): name for name, stack in STACKS.items()}
    return sorted((line.n_blocks, "".join(names[id(each)] for each in line.stacks)) for line in lines)


def test_a_line_over_the_ratio_joins_one_depth_and_number_of_blocks() -> None:
    lines = _over_ratio(STACKS.values())
    assert names_of(lines) == [(2, "ab"), (4, "c"), (4, "ed")]
    assert [line.label for line in lines] == [f"L = {line.stacks[0].n_layers}" for line in lines]
    assert [line.label for line in _over_ratio([STACKS["a"], STACKS["b"]])] == [""]


def test_a_line_over_width_by_depth_joins_the_lowest_loss_of_each_depth() -> None:
    assert names_of(_over_aspect(STACKS.values())) == [(2, "b"), (4, "ce")]


def test_the_page_of_a_search_has_both_curves_with_the_baseline(searched: Path) -> None:
    page = write_comparison_report(searched)["html"].read_text()
    assert '<h2 id="shape-curves-title">' in page
    labels = re.findall(r'aria-label="(Held-out loss over d_\w+ / [^"]*)"', page)
    assert [label.split(",")[0].removeprefix("Held-out loss over ") for label in labels] == [
        "d_hidden / d_model",
        "d_model / n_layers",
    ]
    for label, x in zip(labels, ("0.341", "14.67")):
        assert "a marker for each of 5 shapes" in label
        assert f"The lowest is 3.0270 at {x}, of c, K = 4." in label
        assert "The dashed line is uniform at 3.0500." in label


def test_other_comparisons_have_none(searched: Path) -> None:
    (searched / "search.json").unlink()
    assert 'id="shape-curves"' not in write_comparison_report(searched)["html"].read_text()


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_widths": [[40, 41]] * 6},
        {"hidden_widths": [[40, 40]] * 5 + [[40]]},
        {"hidden_widths": []},
        {"widths": [96] * 5 + [95]},
        {"params": {"total": 9000, "active": 8000, "mtp": 100}},
    ],
)
def test_what_is_no_stack_of_equal_blocks_is_left_out(searched: Path, change: dict[str, Any]) -> None:
    """With neither a nor b there is no line for K = 2."""
    data = json.loads((searched / "comparison.json").read_text())
    for variant in data["variants"][1:3]:
        variant["cost"].update(change)
    curves = shape_curves(Comparison.model_validate(data), list(SHAPES))
    assert curves is not None
    assert [str(name) for _, name in curves.legend] == ["K = 4", "uniform"]
    assert all("each of 3 shapes" in panel.svg for panel in curves.figures)


def test_one_shape_of_each_number_of_blocks_makes_no_curve(searched: Path) -> None:
    assert shape_curves(Comparison.read(searched), ["a", "b"]) is not None
    assert shape_curves(Comparison.read(searched), ["a", "c"]) is None


@pytest.mark.parametrize(("matched", "is_drawn"), [("layer_params", True), ("none", False)])
def test_the_sizes_of_a_sweep_are_drawn_where_they_have_one_budget(
    tmp_path: Path, matched: str, is_drawn: bool
) -> None:
    data = sweep_data()
    points = [data["points"][0]]
    for name, (n_blocks, n_layers, *_, difference) in SHAPES.items():
        point = finished(name, "hg", {"model.ffn.n_blocks": n_blocks, "model.n_layers": n_layers}, difference)
        points.append({**point, "cost": cost_of(point["cost"], name)})
    axes = {"hg": {"model.ffn.n_blocks": [2, 4], "model.n_layers": [3, 6]}}
    study = {**data["study"], "n_points": 6, "n_finished": 6, "n_failed": 0}
    write_sweep(tmp_path, {**data, "points": points, "axes": axes, "study": study, "matched": matched})
    page = write_sweep_report(tmp_path)["html"].read_text()
    assert ('id="shape-curves"' in page) == is_drawn
    assert ("lines by number of blocks K" in page) == is_drawn
