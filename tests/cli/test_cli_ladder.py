"""`widthwise sweep --ladder --dry-run` from argument to output."""

import json
from pathlib import Path

import pytest
import yaml


@pytest.fixture
def ladder(recipe: Path) -> Path:
    data = yaml.safe_load(recipe.read_text())
    rungs = {f"d{d}": {"model": {"d_model": d}} for d in (16, 32, 48)}
    data["ladder"] = {"rungs": rungs, "variants": {"uniform": {}}, "tokens_per_param": 1.5, "seeds": [1, 2]}
    path = recipe.with_name("ladder.yaml")
    path.write_text(yaml.safe_dump(data))
    return path


def test_a_dry_run_of_a_ladder_trains_nothing(ladder: Path, tmp_path: Path, widthwise) -> None:
    code, out, error = widthwise(
        "sweep", ladder, "--ladder", "--dry-run", "--device", "h200", "--mfu", 0.5, "--out", tmp_path / "o"
    )
    assert code == 0, error
    assert "uniform-d48" in out
    assert "H200 at 50% of 989 TFLOP/s" in " ".join(out.split())
    assert not (tmp_path / "o").exists()


def test_rungs_that_take_too_long_are_remarked(ladder: Path, widthwise) -> None:
    arguments = ("sweep", ladder, "--ladder", "--dry-run", "--flops-per-second", 1e3, "--days")
    assert "remark: uniform-d48: a run takes" in widthwise(*arguments, 0.001)[1]
    assert "remark" not in widthwise(*arguments, 1e9)[1]


def test_the_plan_of_a_ladder_as_json(ladder: Path, widthwise) -> None:
    code, out, _ = widthwise("sweep", ladder, "--ladder", "--dry-run", "--flops-per-second", 1e9, "--seed", 5, "--json")
    assert code == 0
    plan = json.loads(out)
    assert plan["seeds"] == [5]
    assert [row["name"] for row in plan["points"]] == ["uniform-d16", "uniform-d32", "uniform-d48"]
    assert plan["hours"] == pytest.approx(plan["training_flops"] / 1e9 / 3600)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--ladder", "--dry-run", "--days", 3), "--days: got 3; it needs a --device or --flops-per-second"),
        (("--ladder", "--days", 3, "--device", "L4"), "--device: goes with --ladder --dry-run"),
        (("--ladder", "--dry-run", "--device", "tpu"), "--device: got 'tpu'; allowed: A100"),
        (("--ladder", "--dry-run", "--mfu", 0.3), "--mfu: got 0.3; it is a share of the peak of a --device"),
        (("--ladder", "--dry-run", "--device", "L4", "--flops-per-second", 1e9), "give one of the two"),
        (("--dry-run", "--device", "L4", "--over", "optimizer.lr=0.1,0.2"), "--device: goes with --ladder --dry-run"),
        (("--ladder", "--over", "optimizer.lr=0.1,0.2"), "--ladder: the ladder section of the recipe says"),
    ],
)
def test_options_that_do_not_go_together_are_refused(ladder: Path, widthwise, options: tuple, named: str) -> None:
    code, _, error = widthwise("sweep", ladder, *options)
    assert code == 2
    assert named in error
