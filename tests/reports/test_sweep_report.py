"""The page of a sweep."""

import csv
import re
from pathlib import Path
from typing import Any

from fake_sweep import BASELINE_LOSS, LAYERS, WIDTHS, difference, sweep_data, without_baseline, write_sweep
from page_section import drawn, page_of, reported, specs

from widthwise.records.outcome import Outcome
from widthwise.reports.charts import Figure, styles
from widthwise.reports.formats import MINUS
from widthwise.reports.sweep_figures import axis_figures


def figures_of(data: dict[str, Any]) -> list[Figure]:
    sweep = Outcome.model_validate(data)
    return axis_figures(sweep, styles(sweep.groups))


def test_the_page_asks_answers_and_lists_points_by_loss_and_failed_ones_with_their_reason(tmp_path: Path) -> None:
    page = page_of(write_sweep(tmp_path))
    assert "Which of 10 points over model.shape.bottleneck_layer and model.shape.bottleneck_width" in page
    assert "at equal parameters, and is it lower than the loss of uniform?" in page
    assert "x-0.25-0.3 has the lowest held-out loss of 8 points, 0.0300 nats below uniform (95% CI " in page
    assert "Corrected for 8 comparisons, the best point is not significantly better than uniform." in page
    assert "On average the points of growing end 0.0350 nats above uniform." in page
    results = page[page.index('<section id="results"') :].partition("</section>")[0]
    names = re.findall(r'<th scope="row">([^<]+)<', results)
    losses = {point["name"]: point["val_loss"]["mean"] for point in sweep_data()["points"] if "val_loss" in point}
    ranked = sorted(losses, key=losses.__getitem__)
    # Losses, costs, the best of many and groups on average, and losses by seed.
    assert names == [*ranked, *ranked, "x-0.25-0.3, best of 8", "growing, 2 points", *ranked]
    assert "x-0.75-0.7-seed2: the loss is nan at step 31" in page
    assert re.search(r'>x-0.5-0.7</th><td class="left">waiting<', page)


def test_a_heat_map_writes_every_cell_and_marks_what_is_surely_lower_and_what_is_best() -> None:
    panel, line = figures_of(sweep_data())
    shown = {(float(cell["down"]), float(cell["across"])): cell for cell in drawn(panel.spec())}
    for layer in LAYERS:
        for width in WIDTHS:
            value = f"{difference(layer, width):+.3f}".replace("-", MINUS)
            expected = {(0.75, 0.7): "failed", (0.5, 0.7): "waiting", (0.25, 0.3): value + "*"}
            assert shown[layer, width]["score"] == expected.get((layer, width), value)
    assert [cell["width"] for cell in shown.values()].count("58.7") == 4  # the average of 64, 48, 64
    assert [place for place, cell in shown.items() if cell["best"]] == [(0.25, 0.3)]
    assert "best: x-0.25-0.3" in panel.label
    # Groups that vary one and the same key share a picture.
    assert line.title == "growing, narrowing: bottleneck_width"
    assert list(line.legend) == ["growing", "narrowing"]


def test_a_star_says_that_better_or_worse_is_the_verdict() -> None:
    for verdict, has_star in {"better": True, "worse": True, "tie": False, "cannot tell": False}.items():
        data = sweep_data()
        for point in data["points"]:
            if point.get("difference"):
                point["verdict"] = verdict
        cells = drawn(figures_of(data)[0].spec())
        assert sum(cell["score"].endswith("*") for cell in cells) == 4 * has_star


def test_one_difference_has_one_colour_in_the_heat_maps_of_all_groups() -> None:
    data = sweep_data()
    data["axes"]["weak"] = data["axes"]["x"]
    points = [point for point in data["points"] if point["group"] == "x" and point["state"] == "finished"]
    weak = [
        {**point, "group": "weak", "name": f"weak-{point['name']}"} for point in points if point["verdict"] != "better"
    ]
    data["points"] += weak
    shades = [{cell["point"]: cell["shade"] for cell in drawn(figure.spec())} for figure in figures_of(data)[:2]]
    for point in weak:
        assert shades[1][point["name"]] == shades[0][point["name"].removeprefix("weak-")]


def test_an_axis_has_room_for_both_ends_of_the_longest_interval() -> None:
    data = sweep_data()
    data["points"][-1]["difference"] |= {"low": -2.0, "high": 3.0}
    picture = figures_of(data)[1].document("svg").decode().replace(MINUS, "-")
    low, high = re.findall(r"Y-axis titled '[^']*' for a linear scale with values from (\S+) to ([^\"]+)\"", picture)[0]
    assert float(low) <= -2 < 3 <= float(high)


def test_without_a_baseline_losses_are_shown_and_no_verdicts(tmp_path: Path) -> None:
    data = without_baseline(sweep_data())
    cells = drawn(figures_of(data)[0].spec())
    assert f"{BASELINE_LOSS + difference(0.25, 0.3):.4f}" in {cell["score"] for cell in cells}
    shades = [cell["shade"] for cell in cells if cell["shade"] is not None]
    assert 0 == min(shades) < max(shades) <= 4  # nothing is worse than nothing
    files = reported(write_sweep(tmp_path, data))
    for suffix in (".html", ".tex"):
        assert not re.findall("Verdict|cannot tell", files[suffix])


def test_runs_of_another_machine_need_not_be_here_and_tables_have_a_row_for_each_finished_point(tmp_path: Path) -> None:
    files = reported(write_sweep(tmp_path, n_seeds_here=0))
    assert "Loss over training FLOPs" in files[".html"]
    rows = {row["variant"]: row for row in csv.DictReader(files[".csv"].splitlines())}
    assert len(rows) == 9
    assert float(rows["x-0.5-0.3"]["difference_mean"]) == difference(0.5, 0.3)


def test_the_thick_line_of_a_group_is_its_point_with_the_lowest_loss(tmp_path: Path) -> None:
    data = sweep_data()
    page = page_of(write_sweep(tmp_path, {**data, "points": data["points"][::-1]}))
    spec = specs(page)["points-step"]
    (thick,) = (layer["data"]["name"] for layer in spec["layer"] if layer["mark"] == {"type": "line"})
    lines = spec["datasets"][thick]
    best = {("x", "x-0.25-0.3"), ("growing", "growing-0.3"), ("narrowing", "narrowing-0.3")}
    assert set(zip(lines["name"], lines["line"])) == best


def test_a_sweep_that_has_just_begun_makes_a_page(tmp_path: Path) -> None:
    data = sweep_data()
    data["points"] = [
        {key: point[key] for key in ("name", "group", "values")} | {"state": "waiting"} for point in data["points"]
    ]
    files = reported(write_sweep(tmp_path, data))
    assert files.keys() == {".html"}
    assert files[".html"].count(">waiting<") >= 11
