"""`widthwise runs` from argument to output."""

import json
import os
import time
from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run that stopped two hours ago, and one that nobody can read."""
    run = tmp_path / "all" / "mine"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("train: {steps: 2000}\n")
    record = {"step": 1200, "event": "train", "loss": 2.34567, "lr": 0.1, "tokens_per_second": 51234.0}
    (run / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    os.utime(run / "metrics.jsonl", (time.time() - 7200, time.time() - 7200))
    (tmp_path / "all" / "broken").mkdir()
    (tmp_path / "all" / "broken" / "config.yaml").write_text("train: [")
    return tmp_path / "all"


def test_a_line_says_how_far_a_run_has_come_and_how_long_ago(folder: Path, succeeds, answer) -> None:
    out, error = succeeds("runs", folder)
    (line,) = [line.split() for line in out.splitlines() if line.startswith("mine")]
    assert line[:4] == ["mine", "stopped", "1,200/2,000", "2.3457"]
    assert line[5:8] == ["51.2k", "2", "h"]
    assert f"{folder}/broken/config.yaml: is not valid YAML" in out + error
    found = {each["path"]: each["state"] for each in answer("runs", folder)["runs"]}
    assert found == {str(folder / "broken"): "unreadable", str(folder / "mine"): "stopped"}
