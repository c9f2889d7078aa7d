"""Growth on the command line: what `train` and `inspect` say of it, and families."""

import json
import re
from pathlib import Path

import yaml

from widthwise.recipe.recipe import load_recipe

DEEPER = "growth=[{at_step: 2, model: {n_layers: 8}}]"


def test_train_shows_the_losses_on_both_sides_of_a_growth(recipe: Path, tmp_path: Path, widthwise) -> None:
    code, _, err = widthwise("train", recipe, DEEPER, "--out", tmp_path / "run")
    assert code == 0
    sizes, losses = r"from ([\d,]+) to ([\d,]+) parameters", r"validation loss (\S+) to (\S+)"
    found = re.search(f"run: step 2/3  growth {sizes}, {losses}", err)
    assert found is not None
    models = [load_recipe(recipe, [DEEPER]).model_at(step) for step in (2, 3)]
    assert [int(found[i].replace(",", "")) for i in (1, 2)] == [model.cost().params for model in models]
    assert abs(float(found[3]) - float(found[4])) < 2e-6


def test_inspect_shows_what_every_phase_costs(recipe: Path, widthwise) -> None:
    code, out, _ = widthwise("inspect", recipe, DEEPER)
    assert code == 0
    models = [load_recipe(recipe, [DEEPER]).model_at(step) for step in (2, 3)]
    for step, model, n_tokens in ((0, models[0], 2 * 4 * 24), (2, models[1], 4 * 24)):
        assert f"after step {step}: {model.cost().params:,} parameters for {n_tokens} tokens" in " ".join(out.split())


def test_a_growth_that_cannot_be_is_one_line(recipe: Path, tmp_path: Path, widthwise) -> None:
    shrinking = "growth=[{at_step: 2, model: {n_layers: 4}}]"
    code, _, err = widthwise("train", recipe, shrinking, "--out", tmp_path / "run")
    assert code == 2
    assert err.strip() == "error: growth.0: n_layers: got 4 where there were 6; growth takes nothing away"
    assert not (tmp_path / "run").exists()


def test_a_family_from_run_to_table(recipe: Path, tmp_path: Path, widthwise) -> None:
    widthwise("train", recipe, "--out", tmp_path / "run")
    (tmp_path / "deep.yaml").write_text(yaml.safe_dump({"extends": "base.yaml", "model": {"n_layers": 8}}))
    (tmp_path / "wide.yaml").write_text(yaml.safe_dump({"extends": "base.yaml", "model": {"d_model": 40}}))
    targets = ("--to", tmp_path / "deep.yaml", "--to", tmp_path / "wide.yaml")
    code, out, _ = widthwise("family", tmp_path / "run", "train.steps=5", *targets, "--json")
    assert code == 0
    family = json.loads(out)
    assert [(member["name"], member["start"]) for member in family["members"]] == [("deep", 3), ("wide", 3)]
    code, out, _ = widthwise("family", tmp_path / "run", "train.steps=5", *targets)
    assert code == 0
    for member in family["members"]:
        assert f"{member['val_loss']:.4f}" in out
    assert f"{family['flops_alone'] / family['family_flops']:.2f} times as many" in " ".join(out.split())


def test_a_family_without_members_is_refused(recipe: Path, tmp_path: Path, widthwise) -> None:
    widthwise("train", recipe, "--out", tmp_path / "run")
    code, _, err = widthwise("family", tmp_path / "run")
    assert (code, err.strip()) == (2, "error: --to: is required; give the recipe of a larger model, one --to for each")
