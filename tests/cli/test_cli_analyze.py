import json
from collections.abc import Callable
from pathlib import Path

import pytest

from widthwise.records.analysis import Analysis

Run = Callable[..., tuple[int, str, str]]
SMALL = ("model.n_layers=2", "train.steps=2")


@pytest.fixture
def runs(widthwise: Run, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """runs/plain below the working folder."""
    monkeypatch.chdir(tmp_path)
    assert widthwise("train", recipe, "--out", "runs/plain", *SMALL)[0] == 0
    return tmp_path / "runs"


def test_analyze_prints_means_and_writes_page_numbers_and_rows(widthwise: Run, recipe: Path, runs: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs the extra [prep]")
    assert widthwise("train", recipe, "--out", "runs/wide", "model.d_model=48", *SMALL)[0] == 0
    code, out, err = widthwise("analyze", "runs/plain", "runs/wide", "--tokens", 240, "--parquet")
    assert (code, "Traceback" in err) == (0, False)
    folder = runs / "plain-vs-wide-analysis"
    assert {path.name for path in folder.iterdir()} == {"analysis.json", "analysis.parquet", "report.html"}
    assert all(f"wrote runs/plain-vs-wide-analysis/{path.name}" in out for path in folder.iterdir())
    written = json.loads((folder / "analysis.json").read_text())
    assert written["command"] == "widthwise analyze runs/plain runs/wide --tokens 240 --parquet"
    assert [model["source"] for model in written["models"]] == ["runs/plain", "runs/wide"]
    cells = next(line.split() for line in out.splitlines() if "Effective number of units over d_ff  " in line)
    for cell, model in zip(cells[-2:], written["models"], strict=True):
        shares = [each["participation_share"] for each in model["activations"]]
        assert float(cell) == pytest.approx(sum(shares) / len(shares), abs=1e-4)


def test_of_one_run_the_analysis_stands_in_its_folder(widthwise: Run, runs: Path) -> None:
    (runs / "own.txt").write_text("def narrow(width): return width // 2\n" * 9)
    options = ("--text", "runs/own.txt", "--seq-len", 10, "--tokens", 57, "--batch-size", 2, "--json")
    code, out, _ = widthwise("analyze", "runs/plain", *options)
    found = json.loads(out)
    assert code == 0
    assert found["text"] == {"source": "runs/own.txt", "seq_len": 10, "n_tokens": 50}
    assert Analysis.read(runs / "plain/analysis").to_data() == found
    assert (runs / "plain/analysis/report.html").is_file()


def test_an_analysis_of_another_step_has_a_folder_of_its_own(succeeds: Run, recipe: Path, runs: Path) -> None:
    steps = ("train.steps=3", "train.checkpoint_every=1", "model.n_layers=2")
    succeeds("train", recipe, "--out", "runs/kept", *steps)
    succeeds("analyze", "runs/kept", "--tokens", 24, "--step", 2)
    found = json.loads((runs / "kept/analysis-step-2/analysis.json").read_text())
    assert [model["step"] for model in found["models"]] == [2]
    out, _ = succeeds("analyze", "runs/kept", "--tokens", 24, "--every-checkpoint")
    assert [line.split()[:4] for line in out.splitlines() if line.startswith("kept,")] == [
        ["kept,", "step", "2", "192"],
        ["kept,", "step", "3", "288"],
    ]
    assert "Over training" in (runs / "kept/analysis-of-checkpoints/report.html").read_text()
