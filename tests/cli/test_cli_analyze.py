import json
from pathlib import Path

import pytest

from widthwise.records.analysis import Analysis


def test_analyze_prints_means_and_writes_page_numbers_and_rows(small: str, succeeds) -> None:
    pytest.importorskip("pyarrow", reason="needs the extra [prep]")
    out, _ = succeeds("analyze", small, "other", "--tokens", 240, "--parquet")
    folder = Path("runs/small-vs-other-analysis")
    assert {path.name for path in folder.iterdir()} == {"analysis.json", "analysis.parquet", "report.html"}
    assert all(f"wrote {path}" in out for path in folder.iterdir())
    written = json.loads((folder / "analysis.json").read_text())
    assert written["command"] == "widthwise analyze small other --tokens 240 --parquet"
    assert [model["source"] for model in written["models"]] == ["small", "other"]
    cells = next(line.split() for line in out.splitlines() if "Effective number of units over d_ff  " in line)
    for cell, model in zip(cells[-2:], written["models"], strict=True):
        shares = [layer["participation_share"] for layer in model["activations"]]
        assert float(cell) == pytest.approx(sum(shares) / len(shares), abs=1e-4)


def test_an_analysis_of_one_run_is_in_its_folder_by_step(small: str, answer, succeeds) -> None:
    Path("own.txt").write_text("def narrow(width): return width // 2\n" * 9)
    text = ("--text", "own.txt", "--seq-len", 10, "--tokens", 57, "--batch-size", 2)
    record = answer("analyze", small, *text, "--step", 2)
    assert record["text"] == {"source": "own.txt", "seq_len": 10, "n_tokens": 50}
    assert [model["step"] for model in record["models"]] == [2]
    assert Analysis.read(Path("small/analysis-step-2")).to_data() == record
    out, _ = succeeds("analyze", small, *text, "--every-checkpoint")
    rows = [line.split()[:4] for line in out.splitlines() if line.startswith("small,")]
    assert rows == [["small,", "step", "2", "192"], ["small,", "step", "3", "288"]]
    assert "Over training" in Path("small/analysis-of-checkpoints/report.html").read_text()
