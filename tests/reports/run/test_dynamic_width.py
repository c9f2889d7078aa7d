import json
import re
from pathlib import Path

import pytest
from fake_comparison import add_to_result, token_widths, write_comparison, write_run
from page_section import section

from widthwise.config_io import UserError
from widthwise.reports.comparison.report import write_comparison_report
from widthwise.reports.run.report import write_run_report


def test_a_run_shows_a_histogram_and_the_flops_asked_bucketed_and_executed(tmp_path: Path) -> None:
    write_run(tmp_path / "r", "dynamic", 1, [64, 64, 64], 0.0)
    add_to_result(tmp_path / "r", token_widths=token_widths(3))
    text = section(write_run_report(tmp_path / "r"), "dynamic-width")
    assert "layer 1 0.25, layer 2 0.50, layer 3 0.75" in text
    for cell in ("1.80M (0.600)", "1.95M (0.650)", "3.00M (1.000)", "+0.21 (+0.18 to +0.24)", "0.125"):
        assert f"<td>{cell}</td>" in text
    assert "frequency decile 10" in text


def test_a_run_shows_how_the_mean_width_moved(tmp_path: Path) -> None:
    write_run(tmp_path / "r", "dynamic", 1, [64], 0.0)
    records = [json.loads(line) for line in (tmp_path / "r/metrics.jsonl").read_text().splitlines()]
    for record in records:
        if record["event"] == "validation":
            record |= {"width_fraction": 0.6, "token_widths": token_widths(1)}
    (tmp_path / "r/metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert "<figcaption>Mean width fraction of tokens</figcaption>" in write_run_report(tmp_path / "r").read_text()


def test_a_comparison_shows_only_the_variants_that_have_widths(tmp_path: Path) -> None:
    write_comparison(tmp_path)
    add_to_result(tmp_path / "runs/variant1-seed1", token_widths=token_widths(2))
    text = section(write_comparison_report(tmp_path)["html"], "dynamic-width")
    assert re.findall(r"<figcaption>(.*?)</figcaption>", text) == ["x"]


def test_without_dynamic_layers_there_is_no_section(tmp_path: Path) -> None:
    write_run(tmp_path / "r", "static", 1, [64], 0.0)
    assert "dynamic-width" not in write_run_report(tmp_path / "r").read_text()


def test_broken_widths_are_named(tmp_path: Path) -> None:
    write_run(tmp_path / "r", "dynamic", 1, [64], 0.0)
    broken = token_widths(1)
    del broken["layers"][0]["histogram"]
    add_to_result(tmp_path / "r", token_widths=broken)
    with pytest.raises(UserError, match=r"result.json: token_widths.layers.0.histogram: is required but missing"):
        write_run_report(tmp_path / "r")
