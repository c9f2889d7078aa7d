"""Recipes that describe several runs, seen as a whole and one by one."""

from pathlib import Path

import pytest
from tiny_sweeps import recipe_file

from widthwise.config_io import UserError
from widthwise.experiments.compare import read_plan
from widthwise.experiments.matching import matched_ratio
from widthwise.experiments.recipes import read_all, read_one
from widthwise.experiments.sweep import read_sweep

COMPARE = {
    "match": {"adjust": {"narrow": "ffn"}},
    "variants": {"base": {}, "narrow": {"model": {"d_model": 40}}, "longer": {"train": {"steps": 5}}},
}


def write(tmp_path: Path, **sections) -> Path:
    return recipe_file(tmp_path, model={"d_model": 48, "n_layers": 3}, **sections)


def test_one_variant_is_what_the_comparison_would_train_even_beside_one_that_cannot_be(tmp_path: Path) -> None:
    compare = {**COMPARE, "variants": {name: COMPARE["variants"][name] for name in ("base", "narrow")}}
    path = write(tmp_path, compare=compare)
    plan = read_plan([path])
    for name in plan.recipes:
        assert read_one(path, variant=name) == plan.recipes[name]
    hopeless = {"model": {"n_layers": 40}}
    compare = {"match": {"adjust": "ffn"}, "variants": {**COMPARE["variants"], "deep": hopeless}}
    path = write(tmp_path, compare=compare)
    assert read_one(path, variant="narrow").model.d_model == 40
    with pytest.raises(UserError, match=r"^deep: params is"):
        read_one(path, variant="deep")


def test_the_summary_holds_costs_ratios_and_misses_and_why_compare_would_refuse(tmp_path: Path) -> None:
    found, refusal = read_all(write(tmp_path, compare=COMPARE))
    base, narrow = found.recipes["base"], found.recipes["narrow"]
    rows = {row["name"]: row for row in found.workload()["points"]}
    assert set(rows["base"]["ratio"].values()) == {1.0}
    assert rows["base"]["params"] == base.final_model.cost().params
    assert rows["narrow"]["ratio"]["params"] == matched_ratio(narrow, base, "params")
    assert rows["narrow"]["adjusted"]["miss"] == rows["narrow"]["ratio"]["params"] - 1
    assert rows["longer"]["ratio"]["training_flops"] == pytest.approx(5 / 4)
    assert rows["longer"]["adjusted"] is None
    with pytest.raises(UserError) as refused:
        read_plan([tmp_path / "tiny.yaml"])
    assert refusal == str(refused.value)
    assert "longer: train.steps is 5" in refusal


def test_the_points_of_a_sweep_are_seen_too(tmp_path: Path) -> None:
    path = write(tmp_path, sweep={"baseline": {}, "over": {"optimizer.lr": [0.1, 0.2]}})
    points = read_sweep(path).points
    found, _ = read_all(path)
    assert found.recipes == {name: point.recipe for name, point in points.items()}
    assert found.baseline == "baseline"
    for name, point in points.items():
        assert read_one(path, variant=name) == point.recipe
