import json
from pathlib import Path

import pytest

from widthwise.records.analysis import Analysis


def test_analyze_prints_means_and_writes_page_numbers_and_rows(small: str, succeeds) -> None:
    pytest.importorskip("pyarrow", reason="needs the extra [prep]")
    succeeds("train", "base.yaml", "--out", "runs/wide", "model.d_model=48", "model.n_layers=2")
    out, _ = succeeds("analyze", small, "runs/wide", "--tokens", 240, "--parquet")
    folder = Path("runs/small-vs-wide-analysis")
    assert {path.name for path in folder.iterdir()} == {"analysis.json", "analysis.parquet", "report.html"}
    assert all(f"wrote {path}" in out for path in folder.iterdir())
    written = json.loads((folder / "analysis.json").read_text())
    assert written["command"] == "widthwise analyze small runs/wide --tokens 240 --parquet"
    assert [model["source"] for model in written["models"]] == ["small", "runs/wide"]
    cells = next(line.split() for line in out.splitlines() if "Effective number of units over d_ff  " in line)
    for cell, model in zip(cells[-2:], written["models"], strict=True):
        shares = [each["participation_share"] for each in model["activations"]]
        assert float(cell) == pytest.approx(sum(shares) / len(shares), abs=1e-4)


def test_of_one_run_the_analysis_stands_in_its_folder(small: str, answer) -> None:
    Path("own.txt").write_text("def narrow(width): return width // 2\n" * 9)
    found = answer("analyze", small, "--text", "own.txt", "--seq-len", 10, "--tokens", 57, "--batch-size", 2)
    assert found["text"] == {"source": "own.txt", "seq_len": 10, "n_tokens": 50}
    assert Analysis.read(Path("small/analysis")).to_data() == found
    assert Path("small/analysis/report.html").is_file()


def test_an_analysis_of_another_step_has_a_folder_of_its_own(small: str, succeeds) -> None:
    succeeds("analyze", small, "--tokens", 24, "--step", 2)
    found = json.loads(Path("small/analysis-step-2/analysis.json").read_text())
    assert [model["step"] for model in found["models"]] == [2]
    out, _ = succeeds("analyze", small, "--tokens", 24, "--every-checkpoint")
    rows = [line.split()[:4] for line in out.splitlines() if line.startswith("small,")]
    assert rows == [["small,", "step", "2", "192"], ["small,", "step", "3", "288"]]
    assert "Over training" in Path("small/analysis-of-checkpoints/report.html").read_text()
