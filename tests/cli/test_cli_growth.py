"""Growth on the command line: what `train` and `inspect` say of it, and families."""

import re
from pathlib import Path

import pytest
import yaml

from widthwise.recipe.recipe import load_recipe
from widthwise.run_dir import RunDir

DEEPER = "growth=[{at_step: 2, model: {n_layers: 8}}]"


def test_inspect_shows_what_every_phase_costs_and_train_the_losses_on_both_sides(recipe, tmp_path, succeeds) -> None:
    models = [load_recipe(recipe, [DEEPER]).model_at(step) for step in (2, 3)]
    shown = " ".join(succeeds("inspect", recipe, DEEPER)[0].split())
    for step, model, n_tokens in ((0, models[0], 2 * 4 * 24), (2, models[1], 4 * 24)):
        assert f"after step {step}: {model.cost().params:,} parameters for {n_tokens} tokens" in shown
    _, err = succeeds("train", recipe, DEEPER, "--out", tmp_path / "run")
    sizes, losses = r"from ([\d,]+) to ([\d,]+) parameters", r"validation loss (\S+) to (\S+)"
    found = re.search(f"run: step 2/3  growth {sizes}, {losses}", err)
    assert [int(found[i].replace(",", "")) for i in (1, 2)] == [model.cost().params for model in models]
    assert abs(float(found[3]) - float(found[4])) < 2e-6


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    """A recipe of two layers more."""
    path = tmp_path / "deep.yaml"
    path.write_text(yaml.safe_dump({"extends": "base.yaml", "model": {"n_layers": 8}}))
    return path


def test_a_family_over_seeds_beside_models_trained_alone(small: str, deep: Path, tmp_path, answer) -> None:
    command = ("family", small, "train.steps=5", "--also", "other", "--to", deep, "--alone", "flops", "--out", "out")
    outcome = answer(*command, "train.checkpoint_every=9")
    found, size = outcome["family"], outcome["points"][0]
    assert [(each["name"], each["seed"]) for each in found["members"]] == [("deep", 0), ("deep", 4)]
    recipes = [load_recipe(tmp_path / "out/runs" / name / "config.yaml") for name in ("deep-seed4", "deep-alone-seed4")]
    assert [each.train.seed for each in recipes] == [4, 4]
    assert recipes[1].train.steps < recipes[0].train.steps
    per_step = recipes[1].training_flops / recipes[1].train.steps
    for grown, alone in zip(found["members"], found["controls"]):
        assert abs(grown["flops"] - alone["flops"]) <= per_step / 2
    expected = [grown["val_loss"] - alone["val_loss"] for grown, alone in zip(found["members"], found["controls"])]
    assert size["difference"]["per_seed"] == pytest.approx(expected, abs=1e-6)
    assert size["verdict"] == "no verdict"
    assert found["family_flops"] == pytest.approx(sum(each["flops"] for each in found["members"]))
    assert found["shared_flops"] == sum(RunDir(Path(run)).result().training_flops for run in (small, "other"))
    page = (tmp_path / "out" / "report.html").read_text()
    for text in ("with as many training FLOPs", "deep: held-out loss", "deep, seed 4", 'id="growth"'):
        assert text in page


def test_further_runs_of_a_family_differ_in_their_seed_alone(small: str, deep: Path, succeeds, refused) -> None:
    succeeds("train", "base.yaml", "train.seed=5", "optimizer.lr=0.02", "--out", "faster")
    to = ("--to", deep, "train.steps=5")
    for also, message in (
        (small, "--also: got runs with the seeds 0, 0; each must have a different seed"),
        ("faster", "--also: faster has another recipe than small; only the seed may differ"),
    ):
        assert refused("family", small, "--also", also, *to) == message
    (alone := deep.with_name("deep-alone.yaml")).write_text(deep.read_text())
    assert "two models have the name deep-alone" in refused("family", small, *to, "--to", alone, "--alone", "tokens")
