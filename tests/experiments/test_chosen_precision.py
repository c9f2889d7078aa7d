"""`precision: auto` is chosen once, where a run or an experiment begins, and stays."""

from pathlib import Path

import pytest
import torch
from tiny_runs import Listener, tiny_recipe
from tiny_sweeps import recipe_file

from widthwise.experiments.compare import read_plan
from widthwise.experiments.running import run_experiment
from widthwise.recipe.recipe import saved_recipe
from widthwise.run_dir import RunDir
from widthwise.runs import environment as machine
from widthwise.runs.environment import bf16_gain, chosen_precision, faster_precision
from widthwise.runs.train import resume, train
from widthwise.yaml_io import to_yaml


@pytest.fixture
def gain(monkeypatch):
    """Sets how many times as fast as fp32 this machine multiplies bf16."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def set_to(value: float) -> None:
        monkeypatch.setattr(machine, "bf16_gain", lambda: value)

    return set_to


def precisions(folder: Path) -> set[str]:
    return {saved_recipe(RunDir(path.parent)).train.precision for path in folder.rglob("config.yaml")}


def test_bf16_is_chosen_where_it_is_clearly_faster_and_a_gpu_is_asked_and_not_timed(gain, monkeypatch):
    for value, precision in ((1.29, "fp32"), (1.3, "bf16")):
        gain(value)
        listener = Listener()
        assert faster_precision(listener) == precision
        assert listener.messages[0].startswith(f"precision: auto is {precision}; bf16 products are 1.3 times as fast")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(machine, "bf16_gain", lambda: pytest.fail("timed"))
    for has_bf16, precision in ((True, "bf16"), (False, "fp32")):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, found=has_bf16: found)
        assert faster_precision() == precision


def test_the_gain_is_the_median_time_in_fp32_after_a_first_call_over_that_in_bf16(monkeypatch):
    def repeat(product, **options):
        seconds = {torch.float32: 0.012, torch.bfloat16: 0.004}[product.args[0].dtype]
        return [9.0, 0.0, 5.0, seconds]

    monkeypatch.setattr("timeit.repeat", repeat)
    assert bf16_gain() == pytest.approx(3)


def test_a_run_keeps_what_was_chosen_when_it_began(gain, tmp_path):
    recipe = tiny_recipe("train.precision=auto", "train.steps=3")
    gain(0.5)
    result = train(recipe, tmp_path / "run")
    gain(2.0)
    assert train(recipe, tmp_path / "run") == result
    resume(tmp_path / "run", overrides=["train.steps=4"])
    train(recipe, tmp_path / "other")
    assert precisions(tmp_path / "run") == {"fp32"}
    assert precisions(tmp_path / "other") == {"bf16"}


def test_all_runs_of_a_comparison_have_one_choice_which_stays(gain, tmp_path):
    compare = {"seeds": [3], "variants": {"a": {}, "b": {"train": {"z_loss": 0.1}}}}
    plan = read_plan([recipe_file(tmp_path, train={"precision": "auto"}, compare=compare)])
    gain(0.5)
    first = run_experiment(plan, tmp_path / "out")
    gain(2.0)
    assert run_experiment(plan, tmp_path / "out").variants == first.variants
    assert precisions(tmp_path) == {"fp32"}
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "precision").write_text("fp32\n")  # another worker, on a machine that differs, was first
    run_experiment(plan, tmp_path / "new")
    assert precisions(tmp_path / "new") == {"fp32"}


def test_what_an_experiment_has_begun_with_is_kept(gain, tmp_path):
    gain(2.0)
    assert chosen_precision(tmp_path) == "bf16"
    for name in ("runs/uniform-seed1", "search/stage-1"):
        RunDir(tmp_path / name).begin(to_yaml(tiny_recipe("train.precision=fp32").resolved()), {})
        assert chosen_precision(tmp_path) == "fp32"
        (tmp_path / name / "config.yaml").unlink()
    assert chosen_precision(tmp_path) == "bf16"
