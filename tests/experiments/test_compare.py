"""A whole comparison, tiny, and one whose variants grow."""

import shutil
from pathlib import Path

import pytest
from file_operations import forge
from tiny_runs import without_measurements
from tiny_sweeps import RECIPE, every_run_raises, recipe_file

from widthwise.experiments import running
from widthwise.experiments.compare import read_plan
from widthwise.experiments.jobs import Jobs
from widthwise.experiments.plan import Comparison, run_path
from widthwise.experiments.running import expected_seconds, run_experiment
from widthwise.experiments.scheduler import HeldElsewhere
from widthwise.mistakes import RunFailed, UserError
from widthwise.records.outcome import Outcome
from widthwise.run_dir import RunDir
from widthwise.yaml_io import merge

X = {"kind": "x", "bottleneck_width": 0.5, "bottleneck_layer": 0.7, "rounding": "balanced"}
TRAIN = {"steps": 5, "validate_every": 1, "checkpoint_every": None}
BASE = merge(RECIPE, {"model": {"d_model": 32, "n_layers": 3}, "train": TRAIN})
VARIANTS = {
    "uniform": {},
    "twin": {"model": {"shape": {"kind": "explicit", "widths": [32] * 3}}},
    "x": {"model": {"shape": X}},
}
COMMAND = "widthwise compare tiny.yaml"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, Path, dict]:
    folder = tmp_path_factory.mktemp("comparison")
    plan = read_plan([recipe_file(folder, base=BASE, compare={"seeds": [3, 5, 8], "variants": VARIANTS})])
    return plan, folder / "out", run_experiment(plan, folder / "out", COMMAND)


def variant(comparison: dict, name: str) -> dict:
    return next(each for each in comparison["points"] if each["name"] == name)


def test_runs_of_one_seed_see_the_same_data_in_the_same_order(done) -> None:
    """A twin of the baseline, described otherwise, trains to exactly the same numbers."""
    _, _, comparison = done
    twin = variant(comparison, "twin")
    assert twin["difference"]["per_seed"] == [0.0, 0.0, 0.0]
    assert (twin["verdict"], twin["difference"]["low"], twin["difference"]["high"]) == ("tie", 0.0, 0.0)
    assert set(twin["ratio"]) >= {"params", "flops", "average_width", "kv_bytes"}
    assert all(ratio == 1.0 for name, ratio in twin["ratio"].items() if name != "tokens_per_second")


def test_twins_need_the_same_for_the_same_loss_and_stay_together(done) -> None:
    _, folder, comparison = done
    equal, gap = (variant(comparison, "twin")[key]["val_loss"] for key in ("at_equal_loss", "gap"))
    n_tokens = 5 * 3 * 17
    assert equal["n_reached"] == 3
    assert equal["tokens"]["per_seed"] == [n_tokens] * 3
    assert equal["training_flops"]["mean"] == RunDir(folder / run_path("twin", 3)).result()["training_flops"]
    assert (equal["tokens_ratio"]["low"], equal["training_flops_ratio"]["high"]) == (1, 1)
    assert gap["tokens"] == [step * 3 * 17 for step in range(1, 6)]
    assert gap["mean"] == [0] * 5
    assert comparison["validations"]["n_fewest"] == 5


def test_the_seconds_that_a_comparison_takes_are_those_of_a_measured_step(done, tmp_path: Path, monkeypatch) -> None:
    plan, folder, _ = done
    monkeypatch.setattr(running, "step_seconds", lambda recipe: 2.0)
    steps = 5 + 5 * 85 / (3 * 17) / 3  # five validations, whose forward passes take a third
    assert expected_seconds(plan, tmp_path / "new", Jobs(2, 1)) == pytest.approx(9 * steps * 2.0 / 2)
    assert expected_seconds(plan, folder, Jobs(1, 1)) is None  # nothing is left


def test_a_record_that_was_changed_is_made_again_without_training(done, tmp_path: Path) -> None:
    plan, folder, comparison = done
    copy = Path(shutil.copytree(folder, tmp_path / "out"))
    text = (folder / "outcome.json").read_text()
    (copy / "outcome.json").write_text(text.replace('"confidence": 0.95', '"confidence": 0.5'))
    with pytest.raises(UserError, match="confidence: was changed after it was written"):
        Outcome.read(copy)
    stamps = {path: path.stat().st_mtime_ns for path in copy.glob("runs/*/result.json")}
    assert len(stamps) == 9
    run_experiment(plan, copy, COMMAND)
    assert Outcome.read(copy).with_changes(created=comparison.created) == comparison
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps


@pytest.fixture
def short(tmp_path: Path) -> Comparison:
    """Two variants and one seed."""
    variants = {"plain": {}, "slow": {"optimizer": {"lr": 0.002}}}
    path = recipe_file(tmp_path, train={"steps": 2}, compare={"seeds": [3], "variants": variants})
    return read_plan([path])


def test_a_run_that_fails_stops_its_worker_and_waits_for_another(short: Comparison, tmp_path: Path) -> None:
    message = "plain-seed3: loss is nan"
    with every_run_raises(RunFailed, "loss is nan"), pytest.raises(RunFailed, match=message):
        run_experiment(short, tmp_path / "out", COMMAND)
    assert len(run_experiment(short, tmp_path / "out", COMMAND).variants) == 2


def test_a_worker_ends_while_others_hold_what_is_left_and_the_last_one_writes(short: Comparison, tmp_path) -> None:
    other = RunDir(tmp_path / "out" / "runs" / "plain-seed3")
    with other.locked(), pytest.raises(HeldElsewhere, match=r"^other workers hold 1 run of the comparison"):
        run_experiment(short, other.path.parents[1], COMMAND, waits=False)
    assert RunDir(tmp_path / "out" / "runs" / "slow-seed3").has_result
    assert not (tmp_path / "out" / "outcome.json").exists()
    assert len(run_experiment(short, tmp_path / "out", COMMAND, waits=False).variants) == 2


def test_a_run_on_other_data_can_be_deleted_to_go_on(short: Comparison, tmp_path: Path) -> None:
    run_experiment(short, tmp_path / "out", COMMAND)
    run = tmp_path / "out" / "runs" / "slow-seed3"
    environment = run / "environment.json"  # as if it had been trained on other data
    forge(environment, lambda record: record["data"]["corpus"].update(fingerprint="of another Python"))
    message = r"slow-seed3: was trained on other data .*plain-seed3.*compare in a new folder"
    with pytest.raises(UserError, match=message):
        run_experiment(short, tmp_path / "out", COMMAND)
    shutil.rmtree(run)
    assert len(run_experiment(short, tmp_path / "out", COMMAND).variants) == 2


HEADS = merge(RECIPE, {"model": {"attention": {"n_heads": 2, "head_dim": None}}, "train": {"steps": 6}})
N_TOKENS = 3 * 17
"""Of a step."""
GROWING = {
    name: {"growth": [{"at_step": 3, "model": {"d_model": 32}, "preserve": is_exact}]}
    for name, is_exact in (("exact", True), ("naive", False))
}


@pytest.fixture(scope="module")
def grown_twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("growth")
    compare = {"seeds": [3, 5], "match": "none", "variants": {"small": {}, **GROWING}}
    plan = read_plan([recipe_file(folder, base=HEADS, compare=compare)])
    return folder / "out", run_experiment(plan, folder / "out", "widthwise compare tiny.yaml")


def losses(run: Path) -> list[dict]:
    return [without_measurements(record) for record in RunDir(run).metrics() if record["event"] == "train"]


def test_variants_of_a_seed_see_the_same_data_whether_they_grow_or_not_and_flops_are_of_all_phases(grown_twice) -> None:
    """The first loss after an exact growth is that of the model that did not grow, on the same batch."""
    runs = grown_twice[0] / "runs"
    for seed in (3, 5):
        small, exact, naive = (losses(runs / f"{name}-seed{seed}") for name in ("small", "exact", "naive"))
        assert exact[:3] == naive[:3] == small[:3]
        assert exact[3]["loss"] == pytest.approx(small[3]["loss"], abs=1e-6)
        assert abs(naive[3]["loss"] - small[3]["loss"]) > 1e-4
        assert exact[4]["loss"] != small[4]["loss"]
    variants = {variant["name"]: variant for variant in grown_twice[1]["points"]}
    costs = [variants[name]["cost"]["flops_per_token"]["training"] for name in ("small", "exact")]
    assert variants["exact"]["ratio"]["training_flops"] == pytest.approx((3 * costs[0] + 3 * costs[1]) / (6 * costs[0]))
    assert variants["exact"]["ratio"]["flops"] == pytest.approx(costs[1] / costs[0])
