"""`widthwise sweep`, from argument to output, on a tiny model."""

import json
from pathlib import Path

import pytest

TINY = ("model.d_model=16", "model.n_layers=2", "train.steps=2", "train.validation_tokens=48")


@pytest.fixture
def sweep(recipe: Path) -> tuple[object, ...]:
    """The verb and its recipe."""
    return ("sweep", recipe, *TINY)


def test_a_sweep_from_the_command_line_alone(sweep, succeeds, answer, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ("--over", "optimizer.lr=0.002,0.03", "--over", "train.batch_size=4", "--seed", 3, "--seed", 5)
    out, error = succeeds(*sweep, *asked, "--out", "found")
    assert "2 points x 2 seeds: 4 runs" in error
    assert "0.03-4 has the lowest held-out loss of 2 points" in " ".join(out.split())
    assert out.index("0.03-4") < out.index("0.002-4")
    assert f"wrote {Path('found') / 'report.html'}" in out
    found = json.loads((tmp_path / "found" / "outcome.json").read_text())
    assert found["command"].endswith("--seed 3 --seed 5 --out found")
    assert [point["values"] for point in found["points"]] == [
        {"optimizer.lr": lr, "train.batch_size": 4} for lr in (0.002, 0.03)
    ]
    assert answer(*sweep, *asked, "--out", "found")["points"] == found["points"]


def test_a_search_from_the_command_line(sweep, answer, tmp_path: Path) -> None:
    over = "optimizer.lr={low: 1e-3, high: 1e-2, log: true}"
    options = ("--sampler", "random", "--trials", 2, "--seed", 3, "--out", tmp_path / "out")
    found = answer(*sweep, "--over", over, *options)
    assert found["study"]["sampler"] == "random"
    assert all(1e-3 <= point["values"]["optimizer.lr"] <= 1e-2 for point in found["points"])
    assert len(found["points"]) == 2
    grid = answer(*sweep, "--over", "optimizer.lr=0.1,0.2", "--sampler", "grid", "--dry-run")
    assert grid["n_points"] == 2


def test_a_dry_run_shows_the_work_and_does_none(sweep, succeeds, answer, tmp_path: Path) -> None:
    asked = ("--over", "train.steps=2,4", "--seed", 1, "--out", tmp_path / "out", "--dry-run")
    assert "2 points x 1 seed: 2 runs" in succeeds(*sweep, *asked)[0]
    work = answer(*sweep, *asked)
    assert not (tmp_path / "out").exists()
    assert [row["tokens"] for row in work["points"]] == [2 * 4 * 24, 4 * 4 * 24]
    assert work["training_flops"] == sum(row["training_flops"] for row in work["points"])


def test_when_all_points_fail_the_exit_code_says_so(sweep, widthwise, answer, tmp_path: Path) -> None:
    asked = (*sweep, "train.steps=4", "train.log_every=1", "--seed", 3)
    code, out, error = widthwise(*asked, "--over", "optimizer.lr=1e6", "--out", tmp_path / "out")
    assert code == 1
    assert "1000000.0: runs/1000000.0-seed3: stopped at step" in out
    assert error.splitlines()[-1] == f"error: {tmp_path / 'out'}: all 1 points failed"
    some = answer(*asked, "--over", "optimizer.lr=1e-3,1e6", "--out", tmp_path / "some")
    assert some["study"]["n_failed"] == 1
