"""The page of a family."""

import json
from pathlib import Path

from tiny_runs import tiny_recipe

from widthwise.reports.writing import write_report
from widthwise.runs.train import train


def test_a_family_of_an_older_version_has_a_page(tmp_path: Path) -> None:
    """Without seeds, controls and sizes; the folder has moved since."""
    train(tiny_recipe("train.steps=2", "schedule={kind: constant}"), tmp_path / "wide")
    member = {"name": "wide", "run": "elsewhere/wide", "params": 10, "start": 1, "tokens": 136}
    member |= {"flops_own": 3.0, "flops": 5.0, "flops_alone": 6.0, "val_loss": 2.5, "val_bits_per_byte": 1.5}
    family = {"source": "runs/small", "shared_flops": 2.0, "family_flops": 5.0, "flops_alone": 6.0, "members": [member]}
    (tmp_path / "family.json").write_text(json.dumps(family))
    (page,) = write_report(tmp_path)
    text = page.read_text()
    assert "What does wide cost and reach, grown from runs/small?" in text
    assert "1.20 times as many" in text
    assert "verdict on grown" not in text
