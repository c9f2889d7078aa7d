"""`widthwise sweep`, `search` and `fit` from argument to output, on tiny models."""

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


SPACE = ("--n-layers", "2..4", "--n-blocks", "1,3", "--ratio", "0.4,0.7", "--tolerance", 0.02)


def test_json_has_what_was_asked_for_and_found(recipe: Path, answer) -> None:
    summary = answer("search", recipe, *SPACE, "--top", 3)
    assert (summary["match"], summary["tolerance"], summary["seq_len"]) == ("layer_params", 0.02, 24)
    assert summary["budget"] == summary["baseline"]["layer_params"] == 16 * 6 * 32**2
    assert len(summary["candidates"]) == 3 <= summary["n_found"]
    assert all(row["n_layers"] in (2, 3, 4) and row["n_blocks"] in (1, 3) for row in summary["candidates"])


def test_the_table_shows_the_base_and_marks_the_pareto_front(recipe: Path, succeeds) -> None:
    lines = succeeds("search", recipe, *SPACE, "--top", 4)[0].splitlines()
    rows = [line for line in lines if "%" in line and "within" not in line]
    assert "layer_params 98.3k, within 2%" in lines[0]
    assert sum(line.split()[0] == "base" for line in lines if line.strip()) == 1
    assert len(rows) == 4
    assert rows[0].split()[0] == "*"
    out, _ = succeeds("search", recipe, *SPACE, "--per", "n_blocks, n_layers", "--top", 2)
    assert "the best of each n_blocks and n_layers: 6, the first 2" in " ".join(out.split())


def test_the_recipes_of_a_search_are_compared_with_the_base(recipe: Path, succeeds, answer, tmp_path: Path) -> None:
    out = tmp_path / "found"
    asked = ("train.steps=2", "--n-layers", "2..4", "--ratio", "0.4,0.7", "--tolerance", 0.01, "--top", 2, "--out", out)
    assert f"wrote 3 recipes to {out / 'recipes'}" in succeeds("search", recipe, *asked)[0].replace("\n", "")
    best = json.loads((out / "search.json").read_text())["candidates"][0]
    recipes = (out / "recipes" / "base.yaml", out / "recipes" / f"{best['name']}.yaml")
    matched = ("--match", "layer_params", "--seed", 3)
    _, shape = answer("compare", *recipes, *matched, "--out", tmp_path / "compared")["points"]
    assert shape["cost"]["params"]["total"] == best["params"]
    assert abs(shape["ratio"]["layer_params"] - 1) <= 0.01


ROWS = "\n".join(
    f"{group},m{x},{x},{scale * x**-0.05:.6f}" for group, scale in (("base", 3.0), ("new", 2.95)) for x in (1, 3, 9, 27)
)


FIT = ("--x", "compute", "--y", "loss", "--group", "model")


@pytest.fixture
def points(tmp_path: Path) -> Path:
    path = tmp_path / "points.csv"
    path.write_text(f"model,name,compute,loss\n{ROWS}\n")
    return path


def test_the_answer_the_table_and_the_files(points: Path, tmp_path: Path, succeeds) -> None:
    out, _ = succeeds("fit", points, *FIT, "--baseline", "base", "--out", tmp_path / "o")
    expected = f"{(2.95 / 3) ** (1 / 0.05):.1%}"
    assert f"new needs {expected} of the compute of base for the same loss (" in " ".join(out.split())
    assert "power *" in out
    assert (tmp_path / "o" / "report.html").is_file()
    *lines, last = out.splitlines()
    assert last == f"wrote {tmp_path}/o/report.html"
    assert max(len(line) for line in lines if not line.startswith("wrote ")) <= 80


def test_an_interval_is_shown_from_its_lower_end(points: Path, tmp_path: Path, succeeds) -> None:
    points.write_text(points.read_text().replace("new,m3,3,2.79", "new,m3,3,2.80"))
    out, _ = succeeds("fit", points, *FIT, "--baseline", "base", "--law", "power", "--out", tmp_path / "o")
    ratios = [each["ratio"] for each in json.loads((tmp_path / "o" / "scaling.json").read_text())["savings"]]
    assert all(ratio["low"] < 0.99 * ratio["high"] for ratio in ratios)
    assert all(f"{ratio['low']:.1%} to {ratio['high']:.1%}" in out for ratio in ratios)


def test_json_is_the_file(points: Path, tmp_path: Path, answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = answer("fit", points, *FIT, "--law", "log_linear")
    stored = json.loads((tmp_path / "runs" / "fit-points-loss-compute" / "scaling.json").read_text())
    assert found == {key: value for key, value in stored.items() if key != "checksums"}
    assert {group["chosen"] for group in found["groups"]} == {"log_linear"}
