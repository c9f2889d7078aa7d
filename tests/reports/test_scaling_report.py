"""The page of fitted laws."""

import csv
import re
from pathlib import Path

import pytest
from fake_scaling import SHARE, SIZES, law, scaling_data, write_scaling
from page_section import check_broken, drawn, labels, page_of, specs

from widthwise.config_io import parse
from widthwise.records.scaling import ScalingLaws
from widthwise.reports.scaling import scaling_answer
from widthwise.reports.writing import write_report


def test_the_page_asks_answers_and_shows_what_is_saved_in_table_and_figure(tmp_path: Path) -> None:
    page = page_of(write_scaling(tmp_path))
    assert "How much of the training FLOPs of uniform does x need for the same loss?" in page
    assert "<p>x needs 80.0% of the training FLOPs of uniform for the same loss (95% CI 75.0% to 85.0%).</p>" in page
    assert "widthwise fit runs/ladder" in page
    savings = page[page.index("training FLOPs for the loss of uniform") :].partition("</table>")[0]
    rows = re.findall(r'<tr><th scope="row">x</th>(.*?)</tr>', savings)
    loss = f"{law(SIZES[-1], 1.0):.4f}"
    expected = [
        ["power *", "the curve", "80.0%", "75.0% to 85.0%", loss],
        ["power *", "the point", "78.3% (extrapolated)", "73.3% to 83.3%", loss],
    ]
    assert [re.findall(r"<td[^>]*>([^<]*)</td>", row)[:5] for row in rows] == expected
    arrows = [row for row in drawn(specs(page)["laws"]) if "share" in row]
    assert [row["share"] for row in arrows] == ["x: 80.0%"]
    assert arrows[0]["x"] == pytest.approx(0.8 * arrows[0]["start"])
    assert f"x reaches {loss} with 80.0% of the training FLOPs of uniform" in labels(page)[0]


def test_csv_files_hold_every_number_at_full_precision(tmp_path: Path) -> None:
    files = {path.stem: path for path in write_report(write_scaling(tmp_path))}
    fits = list(csv.DictReader(files["fits"].open()))
    assert [(row["group"], row["symbol"]) for row in fits] == [(g, s) for g in ("uniform", "x") for s in "ab"]
    parameters = scaling_data()["groups"][1]["fits"]["power"]["parameters"]
    assert float(fits[2]["value"]) == parameters["a"]["mean"]
    savings = {row["kind"]: row for row in csv.DictReader(files["savings"].open())}
    assert float(savings["curve"]["ratio"]) == SHARE
    assert float(savings["point"]["y"]) == law(SIZES[-1], 1.0)


def test_broken_laws_are_refused_in_one_line_and_nothing_is_written(tmp_path: Path) -> None:
    wrong = {
        "savings: got 'nobody' and 'uniform'": lambda data: data["savings"][0].update(group="nobody"),
        "two have the same name": lambda data: data["groups"][1].update(name="uniform"),
        "chosen: got 'log_linear'; fits has power": lambda data: data["groups"][0].update(chosen="log_linear"),
        r"expected a, b": lambda data: data["groups"][0]["fits"]["power"]["parameters"].pop("b"),
    }
    check_broken(write_scaling(tmp_path) / "scaling.json", wrong)


def test_no_significance_a_curve_beyond_its_points_and_one_that_never_reaches_the_loss_are_said(tmp_path: Path) -> None:
    data = scaling_data()
    data["savings"][0] |= {"ratio": {"mean": 0.97, "low": 0.9, "high": 1.04}, "is_extrapolated": True}
    assert scaling_answer(parse(ScalingLaws, data, "scaling")) == [
        "x needs 97.0% of the training FLOPs of uniform for the same loss (95% CI 90.0% to 104.0%): not significant.",
        "This is extrapolated beyond the models of x.",
    ]
    data["savings"][0]["ratio"] = {"mean": None, "low": None, "high": None}
    assert scaling_answer(parse(ScalingLaws, data, "scaling")) == ["The curve of x never reaches the loss of uniform."]
