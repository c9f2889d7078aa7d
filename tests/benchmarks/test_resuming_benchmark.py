"""The table of runs resumed on other processes; tests/distributed trains some of its rows."""

import json

import pytest
import resuming


@pytest.fixture
def report(root) -> dict:
    return json.loads((root / "benchmarks" / "results" / "resuming_cpu.json").read_text())


def test_the_page_on_several_processes_cites_the_largest_differences(report, root):
    text = " ".join((root / "docs" / "distributed.md").read_text().split())
    fp32, fp64 = (f"{resuming.largest(report, dtype):.1e}" for dtype in ("float32", "float64"))
    assert f"at most {fp32} nats in fp32 and {fp64} in fp64" in text


def test_every_change_was_tried_and_is_within_its_bound(report):
    wanted = resuming.rows_of(resuming.RECIPES, ("float32", "float64"))
    assert [tuple(row[key] for key in resuming.Row._fields) for row in report["rows"]] == [tuple(row) for row in wanted]
    for row, found in zip(wanted, report["rows"], strict=True):
        assert found["losses"] <= resuming.bound(row) == found["bound"]
