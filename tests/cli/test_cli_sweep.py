"""`widthwise sweep`, from argument to output, on a tiny model."""

import json
from pathlib import Path

import pytest
import yaml

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


SEARCH = ("--over", "optimizer.lr=0.002", "--seed", 3, "--sampler", "random", "--trials", 1)


@pytest.mark.parametrize("option", ["--storage", "--study"])
def test_an_option_that_was_removed_is_refused_with_what_to_use(sweep, refused, option: str) -> None:
    said = refused(*sweep, *SEARCH, option, "x")
    assert said.startswith(f"{option}: was removed; a search keeps its study in")


def test_a_dry_run_of_rungs_trains_nothing(recipe: Path, succeeds, answer, tmp_path: Path) -> None:
    rungs = {f"d{d}": {"model": {"d_model": d}} for d in (16, 32, 48)}
    sweep = {"rungs": rungs, "groups": {"uniform": {}}, "tokens_per_param": 1.5, "seeds": [1, 2]}
    path = recipe.with_name("rungs.yaml")
    path.write_text(yaml.safe_dump({"extends": "base.yaml", "sweep": sweep}))
    out, _ = succeeds("sweep", path, "--dry-run", "--out", tmp_path / "o")
    assert "uniform-d48" in out
    assert not (tmp_path / "o").exists()
    plan = answer("sweep", path, "--dry-run", "--seed", 5)
    assert plan["seeds"] == [5]
    assert [row["name"] for row in plan["points"]] == ["uniform-d16", "uniform-d32", "uniform-d48"]
