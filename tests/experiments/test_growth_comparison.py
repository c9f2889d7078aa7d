"""A comparison whose variants grow, from recipe to report, and a family branched from one of its runs."""

from pathlib import Path

import pytest
from tiny_runs import without_measurements
from tiny_sweeps import RECIPE, recipe_file

from widthwise.experiments import jobs
from widthwise.experiments.compare import read_plan
from widthwise.experiments.equal_loss import LossCurve, equal_losses
from widthwise.experiments.family import plan_family
from widthwise.experiments.plan import run_path
from widthwise.experiments.running import run_experiment
from widthwise.recipe.recipe import load_recipe, saved_recipe
from widthwise.records.outcome import Outcome
from widthwise.run_dir import RunDir
from widthwise.runs.train import train
from widthwise.runs.trained import RunCheckpoint
from widthwise.training.launch import Interrupted
from widthwise.yaml_io import merge

BASE = merge(RECIPE, {"model": {"attention": {"n_heads": 2, "head_dim": None}}, "train": {"steps": 6}})
N_TOKENS = 3 * 17
"""Of a step."""
VARIANTS = {
    name: {"growth": [{"at_step": 3, "model": {"d_model": 32}, "preserve": is_exact}]}
    for name, is_exact in (("exact", True), ("naive", False))
}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("growth")
    compare = {"seeds": [3, 5], "match": "none", "variants": {"small": {}, **VARIANTS}}
    plan = read_plan([recipe_file(folder, base=BASE, compare=compare)])
    return folder / "out", run_experiment(plan, folder / "out", "widthwise compare tiny.yaml")


def losses(run: Path) -> list[dict]:
    return [without_measurements(record) for record in RunDir(run).metrics() if record["event"] == "train"]


def test_variants_of_a_seed_see_the_same_data_whether_they_grow_or_not_and_flops_are_of_all_phases(done) -> None:
    """The first loss after an exact growth is that of the model that did not grow, on the same batch."""
    runs = done[0] / "runs"
    for seed in (3, 5):
        small, exact, naive = (losses(runs / f"{name}-seed{seed}") for name in ("small", "exact", "naive"))
        assert exact[:3] == naive[:3] == small[:3]
        assert exact[3]["loss"] == pytest.approx(small[3]["loss"], abs=1e-6)
        assert abs(naive[3]["loss"] - small[3]["loss"]) > 1e-4
        assert exact[4]["loss"] != small[4]["loss"]
    variants = {variant["name"]: variant for variant in done[1]["points"]}
    costs = [variants[name]["cost"]["flops_per_token"]["training"] for name in ("small", "exact")]
    assert variants["exact"]["ratio"]["training_flops"] == pytest.approx((3 * costs[0] + 3 * costs[1]) / (6 * costs[0]))
    assert variants["exact"]["ratio"]["flops"] == pytest.approx(costs[1] / costs[0])


def test_a_family_shares_the_first_steps_and_does_nothing_twice(done, tmp_path: Path, monkeypatch) -> None:
    source, out = RunCheckpoint.of(done[0] / "runs" / "small-seed3"), tmp_path / "out"
    larger = (("wide", {"d_model": 32}, 8), ("deep", {"n_layers": 5}, 9))
    recipes = [recipe_file(tmp_path, base=BASE, name=name, model=m, train={"steps": n}) for name, m, n in larger]

    def run_again() -> Outcome:
        return run_experiment(plan_family([source], recipes, []), out)

    def interrupt(path, observer):
        raise Interrupted(f"{path}: stopped", 2)

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "resume", interrupt)
        with pytest.raises(Interrupted, match=r"wide-seed3: stopped; the same command resumes the family"):
            run_again()
    found = run_again()
    assert Outcome.read(out) == found
    wide, deep = found.family.members
    assert (wide["name"], wide["start"], wide["tokens"]) == ("wide", 6, 8 * N_TOKENS)
    shared = source.recipe.training_flops
    saved = [saved_recipe(RunDir(out / run_path(name, 3))) for name in ("wide", "deep")]
    assert [recipe.train.seed for recipe in saved] == [3, 3]
    models = [recipe.final_model for recipe in saved]
    per_token = [model.cost().training_flops(17) for model in models]
    assert wide["flops"] == shared + 2 * N_TOKENS * per_token[0]
    assert deep["flops_alone"] == 9 * N_TOKENS * per_token[1]
    assert found.family.family_flops == shared + N_TOKENS * (2 * per_token[0] + 3 * per_token[1])
    assert found.family.flops_alone == wide["flops_alone"] + deep["flops_alone"]
    stamps = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/result.json")}
    assert len(stamps) == 2
    assert run_again().with_changes(created=found.created) == found
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    for member in found.family.members:
        result = RunDir(Path(member["run"])).result()
        assert member["val_loss"] == result["val_loss"]
        assert member["params"] == result["cost"]["params"]["total"]


def test_a_size_is_compared_with_its_control_at_equal_loss(tmp_path: Path) -> None:
    """What it shared with the others counts: its course begins with the first step of the run it was grown from."""
    small = recipe_file(tmp_path, base=BASE, train={"steps": 3, "validate_every": 1})
    train(load_recipe(small), tmp_path / "small")
    wide = recipe_file(tmp_path, base=BASE, name="wide", model={"d_model": 32}, train={"validate_every": 1})
    out = tmp_path / "out"
    found = run_experiment(plan_family([RunCheckpoint.of(tmp_path / "small")], [wide], [], "tokens"), out)
    grown, alone = found.variants
    assert (grown.name, alone.name) == ("wide", "wide-alone")
    assert found.baseline_of(grown) == found.baseline_of(alone) == alone
    assert alone.verdict == "baseline"
    assert grown.gap["val_loss"].tokens == [step * N_TOKENS for step in range(1, 7)]
    courses = [[LossCurve.of(RunDir(out / each.runs[0]).metrics())] for each in (grown, alone)]
    assert grown.at_equal_loss == equal_losses(courses[0], courses[1])
    assert courses[0][0].training_flops[-1] == found.family.members[0].flops
    assert (found.validations and found.validations.n_fewest) == 6
