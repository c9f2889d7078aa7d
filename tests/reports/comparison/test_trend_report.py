"""The trend of a comparison in its report."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fake_comparison import write_comparison
from page_section import section

from widthwise.config_io import UserError
from widthwise.reports.comparison.report import write_comparison_report

TREND = {
    "over": "virtual_width",
    "slope": {"mean": -0.0125, "low": -0.0375, "high": 0.0125, "per_seed": [-0.0135, -0.0115]},
    "intercept": {"mean": 3.0525, "low": 3.0125, "high": 3.0925, "per_seed": [3.05, 3.055]},
    "r_squared": 0.4321,
    "verdict": "cannot tell",
    "points": [
        {"variant": "hourglass", "value": 6.0, "line": 3.0202, "residual": 0.0338},
        {"variant": "uniform", "value": 1.0, "line": 3.0525, "residual": -0.0025},
        {"variant": "x", "value": 1.5, "line": 3.0452, "residual": -0.0075},
    ],
}


def with_trend(folder: Path, trend: dict[str, Any], **changes: Any) -> Path:
    write_comparison(folder)
    data = json.loads((folder / "comparison.json").read_text())
    (folder / "comparison.json").write_text(json.dumps(data | {"trend": trend} | changes))
    return folder


def shown_in(folder: Path) -> str:
    return section(write_comparison_report(folder)["html"], "trend")


def test_figure_and_tables_say_what_the_line_is(tmp_path: Path) -> None:
    shown = shown_in(with_trend(tmp_path, TREND))
    (label,) = re.findall(r'aria-label="([^"]*)" class="plot"', shown)
    assert "−0.0125 with each doubling (−0.0375 to +0.0125)" in label  # noqa: RUF001
    assert label.index("uniform at 1: 3.0500, line 3.0525") < label.index("x at 1.5") < label.index("hourglass at 6")
    for text in ("3.0125 to 3.0925", "0.4321", "+0.0338", "3.0202", "The line over log2 of virtual_width, 2 seeds"):
        assert text in shown
    ticks = re.findall(r"<text[^>]*>([^<]*)</text>", shown)
    assert {"1", "1.5", "6", "virtual_width, on a logarithmic axis"} <= set(ticks)


def test_the_line_of_another_loss_is_drawn_through_that_loss(tmp_path: Path) -> None:
    folder = with_trend(tmp_path, TREND | {"of": "val_loss_next_2"})
    data = json.loads((folder / "comparison.json").read_text())
    for i, variant in enumerate(data["variants"]):
        variant["measured"] = {"val_loss_next_2": {"mean": 4.5 + i, "per_seed": [4.25 + i, 4.75 + i]}}
    (folder / "comparison.json").write_text(json.dumps(data))
    shown = shown_in(folder)
    assert "Next-2 held-out loss over virtual_width" in shown
    assert "uniform at 1: 4.5000, line 3.0525" in shown


def test_labels_that_would_overlap_are_left_out(tmp_path: Path) -> None:
    points = [point | {"value": value} for point, value in zip(TREND["points"], (6.0, 1.0, 1.01))]
    ticks = re.findall(r"<text[^>]*>([^<]*)</text>", shown_in(with_trend(tmp_path, TREND | {"points": points})))
    assert "1" in ticks
    assert "1.01" not in ticks


def test_a_comparison_without_trend_shows_none(comparison: Path, tmp_path: Path) -> None:
    assert "trend" not in write_comparison_report(comparison, tmp_path)["html"].read_text().lower()


def test_numbers_that_do_not_exist_are_left_open(tmp_path: Path) -> None:
    nothing = {"mean": None, "low": None, "high": None, "per_seed": [None, None]}
    points = [point | {"line": None, "residual": None} for point in TREND["points"]]
    lost = TREND | {"slope": nothing, "intercept": nothing, "r_squared": None, "points": points}
    assert "no interval" in shown_in(with_trend(tmp_path, lost))


def test_a_hostile_quantity_is_shown_and_not_interpreted(tmp_path: Path) -> None:
    shown = shown_in(with_trend(tmp_path, TREND | {"over": "<script>alert(1)</script>\x1b"}))
    assert "<script>" not in shown
    assert "\x1b" not in shown
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"points": [TREND["points"][0] | {"variant": "nobody"}]}, "trend.points: got 'nobody', which is none of"),
        ({"points": [TREND["points"][0] | {"value": 0.0}]}, r"trend\.points\.0\.value: got 0"),
        ({"points": []}, r"trend\.points"),
        ({"slope": None}, r"trend\.slope"),
        ({"of": "val_loss_next_2"}, "hourglass has not one loss per seed"),
    ],
)
def test_a_broken_trend_is_refused_in_one_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        write_comparison_report(with_trend(tmp_path, TREND | change))
    assert "\n" not in str(error.value)


def test_a_variant_without_a_loss_per_seed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has not one loss per seed"):
        write_comparison_report(with_trend(tmp_path, TREND, seeds=[1, 2, 3]))
