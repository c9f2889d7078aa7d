"""The page of a sweep."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_sweep import (
    BASELINE_LOSS,
    LAYER_KEY,
    LAYERS,
    WIDTH_KEY,
    WIDTHS,
    difference,
    finished,
    sweep_data,
    with_wide_grid,
    without_baseline,
    write_sweep,
)

from widthwise.config_io import UserError
from widthwise.records.sweep import Sweep
from widthwise.reports.page.svg import HEAT, styles
from widthwise.reports.sweep.figures import group_figures
from widthwise.reports.sweep.report import write_sweep_report
from widthwise.reports.sweep.values import short_keys

MINUS = "\N{MINUS SIGN}"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = write_sweep(tmp_path_factory.mktemp("sweep"))
    return write_sweep_report(folder)["html"].read_text(encoding="utf-8")


def figures_of(data: dict[str, Any]):
    sweep = Sweep.model_validate(data)
    return group_figures(sweep, styles(sweep.groups))


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def fills(svg: str) -> set[str]:
    return set(re.findall(r"fill: (var\(--heat-\d\))", svg))


def test_the_page_says_what_was_asked_and_answers_it(page: str) -> None:
    assert "Which of 10 points over model.shape.bottleneck_layer and model.shape.bottleneck_width" in page
    assert "at equal parameters, and is it lower than that of uniform?" in page
    assert "Of 8 points x-0.25-0.3 has the lowest held-out loss." in page
    assert "widthwise sweep configs/shapes.yaml" in page
    assert "postgresql://studies/shapes" in page


def test_points_are_sorted_by_loss(page: str) -> None:
    names = re.findall(r'<th scope="row" class="name">([^<]+)<', page)
    losses = {point["name"]: point["val_loss"]["mean"] for point in sweep_data()["points"] if "val_loss" in point}
    assert names == 2 * sorted(losses, key=lambda name: losses[name])  # a table of losses and one of costs


def test_a_heat_map_writes_every_cell_and_marks_what_is_surely_lower_and_what_is_best() -> None:
    (panel,) = figures_of(sweep_data()).maps
    shown = texts(panel.svg)
    for layer in LAYERS:
        for width in WIDTHS:
            value = f"{difference(layer, width):+.3f}".replace("-", MINUS)
            expected = {(0.75, 0.7): "failed", (0.5, 0.7): "waiting", (0.25, 0.3): value + "*"}
            assert expected.get((layer, width), value) in shown
    assert sum(text.endswith("*") for text in shown) == 1
    assert shown.count("58.7") == 4  # the average of 64, 48, 64
    assert "best: x-0.25-0.3" in panel.svg


def test_the_lowest_cell_is_the_deepest_blue_and_the_one_above_zero_is_orange() -> None:
    data = sweep_data()
    above = next(point for point in data["points"] if point["name"] == "x-0.75-0.3")
    above["difference"]["mean"] = 0.03
    found = fills(str(figures_of(data).maps[0].svg))
    assert {"var(--heat-1)", f"var(--heat-{len(HEAT)})"} <= found


def test_without_a_baseline_losses_are_shown_and_no_verdicts(tmp_path: Path) -> None:
    data = without_baseline(sweep_data())
    (panel,) = figures_of(data).maps
    assert f"{BASELINE_LOSS + difference(0.25, 0.3):.4f}" in texts(panel.svg)
    assert fills(str(panel.svg)) <= {f"var(--heat-{i})" for i in range(1, 6)}
    files = write_sweep_report(write_sweep(tmp_path, data))
    page = files["html"].read_text()
    assert "Verdict" not in page
    assert "cannot tell" not in page
    assert "Verdict" not in files["latex"].read_text()


def test_groups_that_vary_one_and_the_same_key_share_a_picture() -> None:
    found = figures_of(sweep_data())
    assert [panel.title for panel in found.lines] == ["growing, narrowing: bottleneck_width"]
    assert found.line_groups == ["growing", "narrowing"]


def test_the_shorter_axis_of_a_wide_grid_runs_across() -> None:
    found = figures_of(with_wide_grid(sweep_data()))
    assert [panel.title for panel in found.wide_maps] == ["wide: bottleneck_layer and bottleneck_width"]
    assert texts(found.wide_maps[0].svg)[:7] == ["0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "bottleneck_width"]


def test_a_search_shows_the_losses_over_each_key() -> None:
    data = sweep_data()
    ranges = {LAYER_KEY: {"low": 0.2, "high": 0.8}, WIDTH_KEY: {"low": 0.1, "high": 1, "log": True}}
    found = figures_of({**data, "axes": {"x": ranges}})
    assert found.maps == []
    assert [panel.title for panel in found.lines] == ["x: bottleneck_layer", "x: bottleneck_width"]
    assert "at 0.25 of x" in found.lines[0].svg


def test_a_key_with_a_single_value_is_no_axis() -> None:
    data = sweep_data()
    found = figures_of({**data, "axes": {"x": {LAYER_KEY: LAYERS, WIDTH_KEY: [0.3]}}})
    assert found.maps == []
    assert [panel.title for panel in found.lines] == ["x: bottleneck_layer"]


@pytest.mark.parametrize("values", [["carry", "zeros", "learned"], [[1, 2], [3], []], [True, False, None], [1, "a"]])
def test_values_need_not_be_numbers(values: list[Any]) -> None:
    points = [finished(f"p{i}", "g", {"model.residual": value}, 0.01 * i) for i, value in enumerate(values)]
    data = {**sweep_data(), "axes": {"g": {"model.residual": values}}}
    data["points"] = [finished("uniform", None, {}, None), *points]
    (panel,) = figures_of(data).lines
    assert "Lowest: +0.0000" in panel.svg


def test_a_baseline_that_is_a_point_of_the_grid_has_its_cell() -> None:
    data = sweep_data()
    for point in data["points"]:
        if point["name"] == "x-0.5-0.3":
            point["difference"] = None
    assert "+0.000" in texts(figures_of({**data, "baseline": "x-0.5-0.3"}).maps[0].svg)


def test_a_sweep_without_groups_shows_its_points_and_its_baseline_apart(tmp_path: Path) -> None:
    data = sweep_data()
    data["points"] = [{**p, "group": ""} for p in data["points"] if p["name"][0] in "ux" or p["name"] == "growing-0.3"]
    data["axes"] = {"": {WIDTH_KEY: [0.3, 0.7]}}
    (panel,) = figures_of(data).lines
    assert panel.title == "All points: bottleneck_width"
    assert "nan" not in panel.svg
    assert "all points" in write_sweep_report(write_sweep(tmp_path, data))["html"].read_text()


def test_failed_points_are_listed_with_their_reason(page: str) -> None:
    assert "x-0.75-0.7-seed2: the loss is nan at step 31" in page
    assert re.search(r">x-0.5-0.7</th><td>waiting<", page)


def test_runs_of_another_machine_need_not_be_here(tmp_path: Path) -> None:
    page = write_sweep_report(write_sweep(tmp_path, n_seeds_here=0))["html"].read_text()
    assert "27 runs are not in this folder" in page
    assert "Loss over training FLOPs per token" in page


def test_training_compute_is_that_of_the_runs_where_they_say_it(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path)
    for path in folder.glob("runs/*/result.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"training_flops": 3.21e15}))
    page = write_sweep_report(folder)["html"].read_text()
    assert "Loss over training FLOPs<" in page
    assert "3.21P FLOPs" in page


def test_csv_has_a_row_for_each_finished_point(tmp_path: Path) -> None:
    files = write_sweep_report(write_sweep(tmp_path, n_seeds_here=0))
    rows = {row["variant"]: row for row in csv.DictReader(files["csv"].open())}
    assert len(rows) == 9
    assert float(rows["x-0.5-0.3"]["difference_mean"]) == difference(0.5, 0.3)
    assert r"x-0.5-0.3" in files["latex"].read_text()


def test_a_sweep_that_has_just_begun_makes_a_page(tmp_path: Path) -> None:
    data = sweep_data()
    for point in data["points"]:
        point.update(state="waiting")
    data["points"] = [{key: point[key] for key in ("name", "group", "values", "state")} for point in data["points"]]
    files = write_sweep_report(write_sweep(tmp_path, data))
    assert set(files) == {"html"}
    assert files["html"].read_text().count(">waiting<") >= 11


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda data: data.pop("axes"), r"sweep\.json: axes: is required but missing"),
        (lambda data: data.update(baseline="nobody"), "baseline: got 'nobody'"),
        (lambda data: data["points"][1].update(name="uniform"), "two have the same name"),
        (lambda data: data["points"][1].update(state="lost"), r"points\.1"),
        (lambda data: data["points"][0].update(runs=[]), r"points\.0.*runs"),
    ],
)
def test_a_broken_sweep_is_refused_in_one_line_and_nothing_is_written(
    tmp_path: Path, edit: Callable[[dict[str, Any]], None], message: str
) -> None:
    data = sweep_data()
    edit(data)
    (tmp_path / "sweep.json").write_text(json.dumps(data))
    with pytest.raises(UserError, match=message) as error:
        write_sweep_report(tmp_path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "report.html").exists()


def test_hostile_names_are_shown_and_not_interpreted(tmp_path: Path) -> None:
    text = json.dumps(sweep_data()).replace("growing", "<script>alert(1)</script>").replace("nan at", "<b> at")
    page = write_sweep_report(write_sweep(tmp_path, json.loads(text), n_seeds_here=0))["html"].read_text()
    assert page.count("<script") == 1
    assert "<b>" not in page


def of_one_seed(data: dict[str, Any]) -> dict[str, Any]:
    for point in data["points"]:
        for key in ("val_loss", "difference"):
            if point.get(key):
                mean = point[key]["mean"]
                point[key] = {"mean": mean, "low": None, "high": None, "per_seed": [mean]}
    return {**data, "seeds": [7]}


def test_one_seed_is_not_said_to_have_intervals(tmp_path: Path, page: str) -> None:
    single = write_sweep_report(write_sweep(tmp_path, of_one_seed(sweep_data()), 0))["html"].read_text()
    assert "bars are these intervals" in page
    assert "No intervals are shown" not in page
    assert "bars are" not in single
    assert "No intervals are shown: a single seed gives none." in single
    assert "Finished points by loss, mean over 1 seed;" in single


def test_a_point_that_diverged_leaves_the_colours_of_the_others_apart() -> None:
    def shades(largest: float) -> set[str]:
        data = sweep_data()
        point = next(each for each in data["points"] if each["name"] == "x-0.75-0.3")
        point["difference"] = {"mean": largest, "low": largest - 1, "high": largest + 1, "per_seed": []}
        (panel,) = figures_of(data).maps
        return fills(panel.svg)

    assert len(shades(1e12)) == 3
    assert "var(--heat-9)" in shades(1e12)
    assert "var(--heat-1)" not in shades(1e12)


def test_without_baseline_a_point_that_diverged_is_pale_and_the_best_is_deepest() -> None:
    data = without_baseline(sweep_data())
    point = next(each for each in data["points"] if each["name"] == "x-0.75-0.3")
    point["val_loss"] = {"mean": 1e12, "low": None, "high": None, "per_seed": []}
    (panel,) = figures_of(data).maps
    assert {"var(--heat-1)", "var(--heat-5)"} <= fills(panel.svg)
    assert len(fills(panel.svg)) == 3
    assert "1.000e+12" in texts(panel.svg)


def test_a_group_of_which_nothing_has_finished_has_no_figure(tmp_path: Path) -> None:
    data = sweep_data()
    kept = ("name", "group", "values")
    data["points"] = [
        {**{key: point[key] for key in kept}, "state": "failed", "reason": "nan"} for point in data["points"]
    ]
    assert figures_of(data).is_empty
    page = write_sweep_report(write_sweep(tmp_path, data))["html"].read_text()
    assert "there is nothing to draw" in page
    assert "the baseline, has no loss" in page


def test_a_name_keeps_its_capitals_in_the_text_of_a_figure() -> None:
    data = sweep_data()
    data["points"][0]["name"] = data["baseline"] = "Llama-B"
    assert 'aria-label="Loss minus that of Llama-B over' in figures_of(data).lines[0].svg


def test_keys_that_end_alike_are_called_by_all_of_their_name() -> None:
    assert short_keys(["a.kind", "b.kind", "b.width"]) == {"a.kind": "a.kind", "b.kind": "b.kind", "b.width": "width"}


@pytest.mark.parametrize(
    ("verdict", "has_star"), [("better", True), ("worse", True), ("tie", False), ("cannot tell", False)]
)
def test_a_star_says_that_better_or_worse_is_the_verdict(verdict: str, has_star: bool) -> None:
    data = sweep_data()
    for point in data["points"]:
        if point.get("difference"):
            point["verdict"] = verdict
    (panel,) = figures_of(data).maps
    numbers = [text for text in texts(panel.svg) if re.match(rf"[+{MINUS}]\d", text)]
    assert len(numbers) == 4
    assert {text.endswith("*") for text in numbers} == {has_star}


def test_intervals_are_drawn_where_there_are_some() -> None:
    with_bars, without = (figures_of(data).lines[0].svg for data in (sweep_data(), of_one_seed(sweep_data())))
    # A bar for each of two points of two groups.
    assert with_bars.count("opacity: 0.55") == 4
    assert without.count("opacity: 0.55") == 0


def test_a_baseline_without_a_loss_is_compared_with_nothing() -> None:
    data = sweep_data()
    data["points"][0]["val_loss"] = {"mean": None, "low": None, "high": None, "per_seed": []}
    sweep = Sweep.model_validate(data)
    assert sweep.baseline_variant is None
    assert f"{BASELINE_LOSS + difference(0.25, 0.3):.4f}" in texts(figures_of(data).maps[0].svg)
