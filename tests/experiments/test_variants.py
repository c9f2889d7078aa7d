"""Recipes that describe several runs, seen as a whole and one by one."""

from pathlib import Path

import pytest
import yaml
from tiny_runs import TINY

from widthwise.config_io import UserError
from widthwise.experiments.ladder import read_ladder
from widthwise.experiments.matching import matched_ratio
from widthwise.experiments.plan import read_plan
from widthwise.experiments.sweep.plan import read_sweep
from widthwise.experiments.variants import describes_several, read_all, read_one
from widthwise.recipe.recipe import load_recipe

CONFIGS = Path(__file__).parents[2] / "configs"
BASE = {
    "model": {"vocab_size": 257, "d_model": 48, "n_layers": 3, "attention": {"head_dim": 8}},
    **TINY,
    "train": {"steps": 3, "batch_size": 4, "precision": "fp32"},
}
COMPARE = {
    "match": {"adjust": {"narrow": "ffn"}},
    "variants": {"base": {}, "narrow": {"model": {"d_model": 40}}, "longer": {"train": {"steps": 5}}},
}


def write(tmp_path: Path, **sections) -> Path:
    path = tmp_path / "several.yaml"
    path.write_text(yaml.safe_dump({**BASE, **sections}))
    return path


def test_one_variant_is_what_the_comparison_would_train(tmp_path: Path) -> None:
    compare = {**COMPARE, "variants": {name: COMPARE["variants"][name] for name in ("base", "narrow")}}
    path = write(tmp_path, compare=compare)
    plan = read_plan([path])
    for name in plan.recipes:
        assert read_one(path, variant=name) == plan.recipes[name]


def test_a_variant_that_cannot_be_does_not_keep_another_from_being_trained(tmp_path: Path) -> None:
    hopeless = {"model": {"n_layers": 40}}
    compare = {"match": {"adjust": "ffn"}, "variants": {**COMPARE["variants"], "deep": hopeless}}
    path = write(tmp_path, compare=compare)
    assert read_one(path, variant="narrow").model.d_model == 40
    with pytest.raises(UserError, match=r"^deep: params is"):
        read_one(path, variant="deep")


def test_overrides_reach_the_variant(tmp_path: Path) -> None:
    assert read_one(write(tmp_path, compare=COMPARE), ["train.seed=9"], "narrow").train.seed == 9


def test_the_summary_holds_costs_ratios_and_misses(tmp_path: Path) -> None:
    found = read_all(write(tmp_path, compare=COMPARE))
    base, narrow = found.recipes["base"], found.recipes["narrow"]
    rows = {row["name"]: row for row in found.summary()["variants"]}
    assert set(rows["base"]["ratio"].values()) == {1.0}
    assert rows["base"]["params"] == base.final_model.cost().params
    assert rows["narrow"]["ratio"]["params"] == matched_ratio(narrow, base, "params")
    assert rows["narrow"]["adjusted"]["miss"] == rows["narrow"]["ratio"]["params"] - 1
    assert rows["longer"]["ratio"]["training_flops"] == pytest.approx(5 / 3)
    assert rows["longer"]["adjusted"] is None


def test_what_compare_would_refuse_is_shown_with_the_reason(tmp_path: Path) -> None:
    found = read_all(write(tmp_path, compare=COMPARE))
    with pytest.raises(UserError) as refused:
        read_plan([tmp_path / "several.yaml"])
    assert found.refusal == str(refused.value)
    assert "longer: train.steps is 5" in found.refusal


def test_the_points_of_a_sweep_are_seen_too(tmp_path: Path) -> None:
    path = write(tmp_path, sweep={"baseline": {}, "over": {"optimizer.lr": [0.1, 0.2]}})
    points = read_sweep(path).grid
    assert read_all(path).recipes == {name: point.recipe for name, point in points.items()}
    assert read_all(path).baseline == "baseline"
    for name, point in points.items():
        assert read_one(path, variant=name) == point.recipe


def test_points_whose_sizes_are_solved_say_what_became_of_them(tmp_path: Path) -> None:
    match = {"quantity": "layer_params", "adjust": "ffn"}
    path = write(tmp_path, sweep={"baseline": {}, "match": match, "over": {"model.d_model": [32, 40]}})
    found = read_all(path)
    rows = {row["name"]: row for row in found.summary()["variants"]}
    assert rows["baseline"]["adjusted"] is None
    for name in ("32", "40"):
        assert read_one(path, variant=name) == found.recipes[name]
        assert rows[name]["adjusted"]["match"] == "layer_params"
        assert rows[name]["adjusted"]["miss"] == rows[name]["ratio"]["layer_params"] - 1
        assert [change["key"] for change in rows[name]["adjusted"]["changes"]] == ["model.ffn.ratio"]


def test_the_points_of_a_search_are_counted(tmp_path: Path) -> None:
    lr = {"low": 0.01, "high": 0.1}
    found = read_all(write(tmp_path, sweep={"over": {"optimizer.lr": lr}, "search": {"n_trials": 7}}))
    assert found.n_drawn == 7
    assert found.baseline is None
    assert [row["ratio"] for row in found.summary()["variants"]] == [None]


def test_the_rungs_of_a_ladder_are_seen_too() -> None:
    path = CONFIGS / "ladder_small.yaml"
    grid = read_ladder(path).grid
    assert read_all(path).recipes == {name: point.recipe for name, point in grid.items()}
    name = next(iter(grid))
    assert read_one(path, variant=name) == grid[name].recipe


def test_a_recipe_of_one_run_is_read_as_ever(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert not describes_several(path)
    assert read_one(path, ["train.steps=7"]) == load_recipe(path, ["train.steps=7"])
    with pytest.raises(UserError, match=r"--variant: got 'x', but .* describes one run"):
        read_one(path, variant="x")


@pytest.mark.parametrize("sections", [{"compare": COMPARE}, {"sweep": {"over": {"optimizer.lr": [0.1, 0.2]}}}])
def test_mistakes_are_named(tmp_path: Path, sections: dict) -> None:
    path = write(tmp_path, **sections)
    with pytest.raises(UserError, match=r"--variant: got 'narow'; "):
        read_one(path, variant="narow")
    with pytest.raises(UserError, match="`widthwise train --variant NAME` one of them"):
        read_one(path)
