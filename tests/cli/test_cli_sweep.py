"""`widthwise sweep`, with and without `--ladder`, from argument to output, on a tiny model."""

import json
from functools import partial
from pathlib import Path

import pytest
import yaml

from widthwise.run_dir import RunDir

TINY = ("model.d_model=16", "model.n_layers=2", "train.steps=2", "train.validation_tokens=48")


@pytest.fixture
def sweep(recipe: Path, widthwise):
    return partial(widthwise, "sweep", recipe, *TINY)


def test_a_sweep_from_the_command_line_alone(sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ("--over", "optimizer.lr=0.002,0.03", "--over", "train.batch_size=4", "--seed", 3, "--seed", 5)
    code, out, error = sweep(*asked, "--out", "found")
    assert code == 0, error
    assert "2 points x 2 seeds: 4 runs" in error
    assert "0.03-4 has the lowest held-out loss of 2 points" in " ".join(out.split())
    assert out.index("0.03-4") < out.index("0.002-4")
    assert f"wrote {Path('found') / 'report.html'}" in out
    found = json.loads((tmp_path / "found" / "outcome.json").read_text())
    assert found["command"].endswith("--seed 3 --seed 5 --out found")
    assert [point["values"] for point in found["points"]] == [
        {"optimizer.lr": lr, "train.batch_size": 4} for lr in (0.002, 0.03)
    ]
    code, out, _ = sweep(*asked, "--out", "found", "--json")
    assert code == 0
    assert json.loads(out)["points"] == found["points"]


def test_a_search_from_the_command_line(sweep, tmp_path: Path) -> None:
    over = "optimizer.lr={low: 1e-3, high: 1e-2, log: true}"
    options = ("--sampler", "random", "--trials", 2, "--seed", 3, "--out", tmp_path / "out", "--json")
    code, out, error = sweep("--over", over, *options)
    assert code == 0, error
    found = json.loads(out)
    assert found["study"]["sampler"] == "random"
    assert all(1e-3 <= point["values"]["optimizer.lr"] <= 1e-2 for point in found["points"])
    assert len(found["points"]) == 2
    grid = sweep("--over", "optimizer.lr=0.1,0.2", "--sampler", "grid", "--dry-run", "--json")
    assert json.loads(grid[1])["n_points"] == 2


def test_a_dry_run_shows_the_work_and_does_none(sweep, tmp_path: Path) -> None:
    code, out, _ = sweep("--over", "train.steps=2,4", "--seed", 1, "--out", tmp_path / "out", "--dry-run")
    assert code == 0
    assert "2 points x 1 seeds: 2 runs" in out
    assert not (tmp_path / "out").exists()
    work = json.loads(sweep("--over", "train.steps=2,4", "--seed", 1, "--dry-run", "--json")[1])
    assert [row["tokens"] for row in work["points"]] == [2 * 4 * 24, 4 * 4 * 24]
    assert work["training_flops"] == sum(row["training_flops"] for row in work["points"])


def test_when_all_points_fail_the_exit_code_says_so(sweep, tmp_path: Path) -> None:
    code, out, error = sweep(
        "train.steps=4", "train.log_every=1", "--over", "optimizer.lr=1e6", "--seed", 3, "--out", tmp_path / "out"
    )
    assert code == 1
    assert "1000000.0: runs/1000000.0-seed3: stopped at step" in out
    assert error.splitlines()[-1] == f"error: {tmp_path / 'out'}: all 1 points failed"
    some = ("train.log_every=1", "--over", "optimizer.lr=1e-3,1e6", "--seed", 3, "--out", tmp_path / "some", "--json")
    code, out, _ = sweep("train.steps=4", *some)
    assert (code, json.loads(out)["study"]["n_failed"]) == (0, 1)


SEARCH = ("--over", "optimizer.lr=0.002", "--seed", 3, "--sampler", "random", "--trials", 1)


def test_the_password_of_a_storage_is_not_shown(sweep, tmp_path: Path) -> None:
    storage = "postgresql://u:hush@127.0.0.1:1/d?connect_timeout=2"
    code, out, error = sweep(*SEARCH, "--out", tmp_path / "out", "--storage", storage)
    assert code == 2
    assert error.splitlines()[-1].startswith("error: --storage: postgresql+psycopg://u:***@127.0.0.1:1/d: ")
    assert "hush" not in out + error


def test_the_storage_can_be_named_by_the_environment(sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIDTHWISE_STORAGE", f"sqlite:///{tmp_path / 'mine.db'}")
    code, _, error = sweep(*SEARCH, "--out", tmp_path / "out")
    assert code == 0, error
    assert (tmp_path / "mine.db").is_file()
    assert RunDir(tmp_path / "out" / "runs" / "0.002-seed3").result()
    _, _, error = sweep("--over", "optimizer.lr=0.002", "--seed", 3, "--out", tmp_path / "out")
    assert "this sweep chooses no points" in error


@pytest.fixture
def ladder(recipe: Path, widthwise):
    rungs = {f"d{d}": {"model": {"d_model": d}} for d in (16, 32, 48)}
    ladder = {"rungs": rungs, "variants": {"uniform": {}}, "tokens_per_param": 1.5, "seeds": [1, 2]}
    path = recipe.with_name("ladder.yaml")
    path.write_text(yaml.safe_dump({"extends": "base.yaml", "ladder": ladder}))
    return partial(widthwise, "sweep", path, "--ladder", "--dry-run")


def test_a_dry_run_of_a_ladder_trains_nothing_and_remarks_rungs_that_take_too_long(ladder, tmp_path: Path) -> None:
    code, out, error = ladder("--device", "h200", "--mfu", 0.5, "--out", tmp_path / "o")
    assert code == 0, error
    assert "uniform-d48" in out
    assert "H200 at 50% of 989 TFLOP/s" in " ".join(out.split())
    assert not (tmp_path / "o").exists()
    assert "remark: uniform-d48: a run takes" in ladder("--flops-per-second", 1e3, "--days", 0.001)[1]
    assert "remark" not in ladder("--flops-per-second", 1e3, "--days", 1e9)[1]
    plan = json.loads(ladder("--flops-per-second", 1e9, "--seed", 5, "--json")[1])
    assert plan["seeds"] == [5]
    assert [row["name"] for row in plan["points"]] == ["uniform-d16", "uniform-d32", "uniform-d48"]
    assert plan["hours"] == pytest.approx(plan["training_flops"] / 1e9 / 3600)
    assert "--mfu: got 0; must be above 0 and at most 1" in ladder("--device", "h200", "--mfu", 0)[2]
