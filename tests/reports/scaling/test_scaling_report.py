"""The page of fitted laws."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_scaling import SHARE, SIZES, law, scaling_data, write_scaling

from widthwise.config_io import UserError
from widthwise.reports.scaling.figures import round_steps
from widthwise.reports.scaling.report import write_scaling_report


def page_of(folder: Path, data: dict[str, Any] | None = None) -> str:
    return write_scaling_report(write_scaling(folder, data))["html"].read_text(encoding="utf-8")


def test_the_page_asks_answers_and_says_how_to_reproduce(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    assert "With how much of the training FLOPs of uniform does x reach the same loss?" in page
    assert "x reaches uniform&#39;s fitted loss with 80.0% of the training FLOPs." in page
    assert "widthwise fit runs/ladder" in page


def test_curve_and_point_stand_side_by_side(tmp_path: Path) -> None:
    (row,) = re.findall(r'<tr><th scope="row">x</th><td[^>]*>uniform</td>(.*?)</tr>', page_of(tmp_path))
    loss = f"{law(SIZES[-1], 1.0):.4f}"
    expected = ["power *", "80.0%", "75.0% to 85.0%", loss, "78.3% (extrapolated)", "73.3% to 83.3%", loss]
    assert re.findall(r"<td[^>]*>([^<]*)</td>", row) == expected


def test_the_figure_names_what_is_saved_and_sizes_in_round_numbers(tmp_path: Path) -> None:
    svg = re.search(r'<svg[^>]*class="plot".*?</svg>', page_of(tmp_path), re.DOTALL)
    assert svg
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg[0])
    assert "x: 80.0%" in texts
    assert {"500P", "1E", "10E"} <= set(texts)
    assert f"x reaches {law(SIZES[-1], 1.0):.4f} with 80.0% of what uniform needs" in svg[0]


def test_only_the_savings_of_the_drawn_law_have_an_arrow(tmp_path: Path) -> None:
    data = scaling_data()
    data["savings"] = [{**each, "fit": "log_linear"} for each in data["savings"]]
    page = page_of(tmp_path, data)
    assert "of what uniform needs" not in page
    assert "<td>80.0%</td>" in page


def test_a_group_without_a_fit_shows_its_points(tmp_path: Path) -> None:
    data = scaling_data()
    nothing = {"form": "y = a*x^-b", "parameters": {}, "rms": None, "r_squared": None, "reason": "needs 2 different x"}
    data["groups"][1].update(fits={"power": nothing}, points=data["groups"][1]["points"][:1])
    data["savings"] = []
    page = page_of(tmp_path, data)
    assert "How does loss of uniform and x fall with training FLOPs?" in page
    assert "needs 2 different x" in page
    assert 'id="savings"' not in page


def test_csv_files_hold_every_number_at_full_precision(tmp_path: Path) -> None:
    files = write_scaling_report(write_scaling(tmp_path))
    fits = list(csv.DictReader(files["fits"].open()))
    assert [(row["group"], row["symbol"]) for row in fits] == [(g, s) for g in ("uniform", "x") for s in "ab"]
    parameters = scaling_data()["groups"][1]["fits"]["power"]["parameters"]
    assert float(fits[2]["value"]) == parameters["a"]["mean"]
    savings = {row["kind"]: row for row in csv.DictReader(files["savings"].open())}
    assert float(savings["curve"]["ratio"]) == SHARE
    assert float(savings["point"]["y"]) == law(SIZES[-1], 1.0)


@pytest.mark.parametrize(("low", "high"), [(0.18, 17.0), (2e17, 2e19), (1e3, 1e12), (0.9, 1.1), (1e-30, 1e30)])
def test_ticks_are_few_round_and_inside(low: float, high: float) -> None:
    ticks = round_steps(low, high)
    assert 1 <= len(ticks) <= 7
    assert all(low / 1.21 <= tick <= high * 1.21 for tick in ticks)
    assert {f"{tick:.12e}"[0] for tick in ticks} <= set("125")
    assert all(np.isclose(tick, float(f"{tick:.0e}"), rtol=1e-12) for tick in ticks)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda data: data.pop("savings"), r"scaling\.json: savings: is required but missing"),
        (lambda data: data["savings"][0].update(group="nobody"), "savings: got 'nobody' and 'uniform'"),
        (lambda data: data["groups"][1].update(name="uniform"), "two have the same name"),
        (lambda data: data["groups"][0]["points"][0].update(x=0.0), r"groups\.0\.points\.0\.x: got 0"),
        (lambda data: data["groups"][0]["fits"]["power"]["parameters"].pop("b"), r"expected a, b"),
    ],
)
def test_broken_laws_are_refused_in_one_line_and_nothing_is_written(
    tmp_path: Path, edit: Callable[[dict[str, Any]], None], message: str
) -> None:
    data = scaling_data()
    edit(data)
    with pytest.raises(UserError, match=message) as error:
        write_scaling_report(write_scaling(tmp_path, data))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "report.html").exists()


def test_hostile_names_are_shown_and_not_interpreted(tmp_path: Path) -> None:
    text = json.dumps(scaling_data()).replace("uniform", "<script>alert(1)</script>")
    assert page_of(tmp_path, json.loads(text)).count("<script") == 1


def test_an_arrow_beyond_the_points_is_inside_the_figure(tmp_path: Path) -> None:
    data = scaling_data()
    data["savings"][0]["ratio"] = {"mean": 20.0, "low": 19.0, "high": 21.0}
    page = page_of(tmp_path, data)
    assert ">100E</text>" in page
    assert ">x: 2000.0%</text>" in page


def test_axes_are_called_logarithmic_only_where_they_are(tmp_path: Path) -> None:
    data = scaling_data()
    assert "both axes are logarithmic" in page_of(tmp_path / "a", data)
    data["groups"][0]["points"][0]["y"] = -0.1
    page = page_of(tmp_path / "b", data)
    assert "the horizontal axis is logarithmic" in page
    assert "on logarithmic axes" not in page


def test_without_fits_nothing_is_said_of_lines(tmp_path: Path) -> None:
    data = {**scaling_data(), "savings": []}
    for group in data["groups"]:
        group.update(fits={"power": None}, chosen=None)
    page = page_of(tmp_path, data)
    assert "lines are the laws" not in page
    assert "An arrow" not in page
    assert "Values of the fitted laws" not in page
