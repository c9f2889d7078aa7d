"""`precision: auto` is chosen once, where a run or an experiment begins, and stays."""

import time
from pathlib import Path

import pytest
import torch
import yaml
from tiny_runs import tiny_recipe
from tiny_sweeps import RECIPE, recipe_file

from widthwise.experiments.compare import run_plan
from widthwise.experiments.discovery.discover import plan_discovery
from widthwise.experiments.plan import read_plan
from widthwise.experiments.sweep.plan import read_sweep
from widthwise.experiments.sweep.worker import run_sweep
from widthwise.model.decoder import build
from widthwise.recipe.recipe import saved_recipe
from widthwise.run_dir import RunDir
from widthwise.runs import rates
from widthwise.runs.rates import bf16_gain, chosen_precision, faster_precision
from widthwise.runs.save import save_run
from widthwise.runs.train import resume, train
from widthwise.training.observer import Silence

AUTO = {**RECIPE, "train": {**RECIPE["train"], "precision": "auto"}}


class Messages(Silence):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def message(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def gain(monkeypatch):
    """Sets how many times as fast as fp32 this machine multiplies bf16."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def set_to(value: float) -> None:
        monkeypatch.setattr(rates, "bf16_gain", lambda: value)

    return set_to


def precisions(folder: Path) -> set[str]:
    return {saved_recipe(RunDir(path.parent)).train.precision for path in folder.rglob("config.yaml")}


@pytest.mark.parametrize(("value", "precision"), [(0.4, "fp32"), (1.29, "fp32"), (1.3, "bf16"), (6.0, "bf16")])
def test_bf16_is_chosen_where_it_is_clearly_faster(gain, value, precision):
    gain(value)
    said = Messages()
    assert faster_precision(said) == precision
    assert said.lines == [f"precision: auto is {precision}; bf16 products are {value:.2g} times as fast here"]


@pytest.mark.parametrize("has_bf16", [True, False])
def test_a_gpu_is_asked_and_not_timed(monkeypatch, has_bf16):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_bf16)
    monkeypatch.setattr(rates, "bf16_gain", lambda: pytest.fail("timed"))
    assert faster_precision() == ("bf16" if has_bf16 else "fp32")


def test_the_gain_is_the_time_in_fp32_over_that_in_bf16(monkeypatch):
    """Products that sleep for times of their own stand in for the machine's."""
    naps = {torch.float32: 0.012, torch.bfloat16: 0.004}
    monkeypatch.setattr(rates.nn.functional, "linear", lambda x, weight: time.sleep(naps[x.dtype]))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # so that the clock on the wall counts
    assert 1.5 < bf16_gain() < 6


def test_a_run_keeps_what_was_chosen_when_it_began(gain, tmp_path):
    recipe = tiny_recipe("train.precision=auto", "train.steps=4")
    gain(0.5)
    result = train(recipe, tmp_path / "run")
    gain(2.0)
    assert train(recipe, tmp_path / "run") == result
    resume(tmp_path / "run", overrides=["train.steps=5"])
    train(recipe, tmp_path / "other")
    assert precisions(tmp_path / "run") == {"fp32"}
    assert precisions(tmp_path / "other") == {"bf16"}
    same = train(tiny_recipe("train.precision=fp32", "train.steps=4"), tmp_path / "same")
    assert same.val_loss == result.val_loss


def test_a_model_that_is_saved_as_a_run_has_a_choice(gain, tmp_path):
    gain(0.5)
    recipe = tiny_recipe("train.precision=auto")
    save_run(build(recipe.explicit_model, seed=0), None, tmp_path / "run", recipe)
    assert precisions(tmp_path) == {"fp32"}


def test_all_runs_of_a_comparison_have_one_choice_which_stays(gain, tmp_path):
    path = recipe_file(tmp_path, **AUTO, compare={"seeds": [3], "variants": {"a": {}, "b": {"train": {"z_loss": 0.1}}}})
    gain(0.5)
    first = run_plan(read_plan([path]), tmp_path / "out")
    gain(2.0)
    again = run_plan(read_plan([path]), tmp_path / "out")
    assert precisions(tmp_path) == {"fp32"}
    assert first.variants == again.variants


def test_all_runs_of_a_sweep_have_one_choice_which_stays(gain, tmp_path):
    path = recipe_file(tmp_path, {"over": {"optimizer.lr": [0.002, 0.03]}, "seeds": [4]}, **AUTO)
    gain(2.0)
    first = run_sweep(read_sweep(path), tmp_path / "out", "widthwise sweep tiny.yaml")
    gain(0.5)
    again = run_sweep(read_sweep(path), tmp_path / "out", "widthwise sweep tiny.yaml")
    assert precisions(tmp_path) == {"bf16"}
    assert first.points == again.points


def test_machines_that_choose_differently_do_not_share_an_experiment(tmp_path):
    comparison = read_plan([recipe_file(tmp_path, **AUTO, compare={"variants": {"a": {}, "b": {}}})])
    sweep = read_sweep(recipe_file(tmp_path, {"over": {"optimizer.lr": [0.002, 0.03]}}, **AUTO))
    for plan in (comparison, sweep):
        assert len({plan.settled(lambda p=p: p).identity for p in ("fp32", "bf16")}) == 2


def test_a_discovery_and_its_rivals_have_one_choice(tmp_path):
    path = recipe_file(tmp_path, **AUTO, discover={"method": {"kind": "growing", "n_stages": 3}})
    plan = plan_discovery(path).settled(lambda: "fp32")
    assert plan.task.base.train.precision == plan.data["train"]["precision"] == "fp32"


def test_what_an_experiment_has_begun_with_is_kept(gain, tmp_path):
    gain(2.0)
    assert chosen_precision(tmp_path) == "bf16"
    for name in ("runs/uniform-seed1", "search/stage-1"):
        (tmp_path / name).mkdir(parents=True)
        config = tiny_recipe("train.precision=fp32")
        (tmp_path / name / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
        assert chosen_precision(tmp_path) == "fp32"
        (tmp_path / name / "config.yaml").unlink()
    assert chosen_precision(tmp_path) == "bf16"
