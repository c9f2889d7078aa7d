"""`shrink`, from a run to a smaller run that trains on."""

import json
from collections.abc import Callable
from pathlib import Path


def test_a_cut_run_trains_on_and_leaves(small: str, succeeds: Callable) -> None:
    words = ("shrink", small, "--flops", 0.8, "--calibration-batches", 2, "--out", "cut", "train.steps=3")
    out, _ = succeeds(*words)
    lines = out.splitlines()
    assert any("before any healing" in line for line in lines[:2])
    assert lines[-2:] == ["wrote cut", "next: widthwise resume cut"]
    record = json.loads(Path("cut/shrunk.json").read_text())
    assert record["after"]["flops_per_token"] <= 0.8 * record["before"]["flops_per_token"]
    succeeds("resume", "cut")
    succeeds("export", "cut", "exported")


def test_a_plan_writes_nothing_and_json_is_the_record(small: str, answer) -> None:
    before = sorted(Path().iterdir())
    found = answer("shrink", small, "--params", 0.9, "--shape", "x", "--plan-only")
    assert found["request"]["shape"] == "x"
    assert found["before"]["params"] > found["after"]["params"]
    assert sorted(Path().iterdir()) == before
