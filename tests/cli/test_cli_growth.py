"""Growth on the command line: what `train` and `inspect` say of it, and families."""

import json
import re
from pathlib import Path

import pytest
import yaml

from widthwise.recipe.recipe import load_recipe

DEEPER = "growth=[{at_step: 2, model: {n_layers: 8}}]"


def test_inspect_shows_what_every_phase_costs_and_train_the_losses_on_both_sides(
    recipe: Path, tmp_path: Path, succeeds
) -> None:
    models = [load_recipe(recipe, [DEEPER]).model_at(step) for step in (2, 3)]
    shown = " ".join(succeeds("inspect", recipe, DEEPER)[0].split())
    for step, model, n_tokens in ((0, models[0], 2 * 4 * 24), (2, models[1], 4 * 24)):
        assert f"after step {step}: {model.cost().params:,} parameters for {n_tokens} tokens" in shown
    _, err = succeeds("train", recipe, DEEPER, "--out", tmp_path / "run")
    sizes, losses = r"from ([\d,]+) to ([\d,]+) parameters", r"validation loss (\S+) to (\S+)"
    found = re.search(f"run: step 2/3  growth {sizes}, {losses}", err)
    assert [int(found[i].replace(",", "")) for i in (1, 2)] == [model.cost().params for model in models]
    assert abs(float(found[3]) - float(found[4])) < 2e-6


def test_a_family_from_run_to_table(small: str, tmp_path: Path, succeeds) -> None:
    (tmp_path / "deep.yaml").write_text(yaml.safe_dump({"extends": "base.yaml", "model": {"n_layers": 8}}))
    (tmp_path / "wide.yaml").write_text(yaml.safe_dump({"extends": "base.yaml", "model": {"d_model": 40}}))
    targets = ("--to", tmp_path / "deep.yaml", "--to", tmp_path / "wide.yaml")
    out, _ = succeeds("family", small, "train.steps=5", *targets, "--json")
    family = json.loads(out)["family"]
    assert [(member["name"], member["start"]) for member in family["members"]] == [("deep", 3), ("wide", 3)]
    out, _ = succeeds("family", small, "train.steps=5", *targets)
    for member in family["members"]:
        assert f"{member['val_loss']:.4f}" in out
    assert f"{family['flops_alone'] / family['family_flops']:.2f} times the training FLOPs" in " ".join(out.split())


@pytest.fixture
def two_seeds(recipe: Path, tmp_path: Path, widthwise) -> tuple[Path, Path]:
    for name, seed in (("run", 3), ("other", 4)):
        assert widthwise("train", recipe, f"train.seed={seed}", "--out", tmp_path / name)[0] == 0
    (tmp_path / "deep.yaml").write_text(yaml.safe_dump({"extends": "base.yaml", "model": {"n_layers": 8}}))
    return tmp_path / "run", tmp_path / "other"


def test_a_family_over_seeds_beside_models_trained_alone(two_seeds, tmp_path: Path, succeeds) -> None:
    command = ("family", two_seeds[0], "train.steps=5", "--also", two_seeds[1], "--to", tmp_path / "deep.yaml")
    command = (*command, "--alone", "flops", "--out", tmp_path / "out")
    out, _ = succeeds(*command, "--json")
    outcome = json.loads(out)
    found, size = outcome["family"], outcome["points"][0]
    assert [(each["name"], each["seed"]) for each in found["members"]] == [("deep", 3), ("deep", 4)]
    recipes = [load_recipe(tmp_path / "out" / name / "config.yaml") for name in ("deep-seed4", "deep-alone-seed4")]
    assert [each.train.seed for each in recipes] == [4, 4]
    assert recipes[1].train.steps < recipes[0].train.steps
    per_step = recipes[1].training_flops / recipes[1].train.steps
    for grown, alone in zip(found["members"], found["controls"]):
        assert abs(grown["flops"] - alone["flops"]) <= per_step / 2
    expected = [grown["val_loss"] - alone["val_loss"] for grown, alone in zip(found["members"], found["controls"])]
    assert size["difference"]["per_seed"] == pytest.approx(expected, abs=1e-6)
    assert size["verdict"] == "no verdict"
    assert found["family_flops"] == pytest.approx(sum(each["flops"] for each in found["members"]))
    page = (tmp_path / "out" / "report.html").read_text()
    for text in ("with as many training FLOPs", "deep: held-out loss", "deep, seed 4", 'id="growth"'):
        assert text in page
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*/result.json")}
    assert len(stamps) == 4
    out, _ = succeeds(*command)
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert "with 2 seeds there is no verdict" in " ".join(out.split())
    succeeds("report", tmp_path / "out")


def test_further_runs_of_a_family_differ_in_their_seed_alone(two_seeds, recipe, tmp_path: Path, widthwise) -> None:
    run, _ = two_seeds
    widthwise("train", recipe, "train.seed=5", "optimizer.lr=0.02", "--out", tmp_path / "faster")
    to = ("--to", tmp_path / "deep.yaml", "train.steps=5")
    for also, message in (
        (run, "--also: got runs of the seeds 3, 3; each must have another"),
        (tmp_path / "faster", f"--also: {tmp_path}/faster has another recipe than {run}; only the seed may differ"),
    ):
        code, _, err = widthwise("family", run, "--also", also, *to)
        assert (code, err.strip()) == (2, f"error: {message}")
    (tmp_path / "deep-alone.yaml").write_text((tmp_path / "deep.yaml").read_text())
    code, _, err = widthwise("family", run, *to, "--to", tmp_path / "deep-alone.yaml", "--alone", "tokens")
    assert (code, "two runs would have the folder" in err) == (2, True)
