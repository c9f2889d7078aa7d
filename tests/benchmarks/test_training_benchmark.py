import json

import pytest
import torch
import training
from step_shares import recipe_of
from workloads import TrainingStep, random_batch, template

from widthwise.model.decoder import build

TINY = training.Size(64, 16, n_layers=4, vocab_size=97, seq_len=33, batch_size=2)


def test_x_over_uniform_names_the_flop_ratio_it_is_held_to():
    report = training.x_over_uniform(TINY, "fp32", compiled=False, n_rounds=2)
    models = {shape: template(64, 4, 16, 97, shape).resolve(33).cost() for shape in ("uniform", "x")}
    assert report["flop_ratio"] == models["x"].forward_flops(33) / models["uniform"].forward_flops(33)
    assert report["params_ratio"] == models["x"].params / models["uniform"].params
    assert report["target"] == report["flop_ratio"] + training.FLOP_SLACK
    assert report["meets_target"] == (report["variants"]["x"]["cpu_ratio"]["median"] <= report["target"])
    json.dumps(report)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_llama_has_our_parameters_and_both_take_a_step(precision):
    pytest.importorskip("transformers", reason="the comparison with Hugging Face needs the extra [hf]")
    report = training.ours_over_llama(TINY, precision, compiled=False, n_rounds=1)
    assert set(report["variants"]) == {"llama", "ours"}
    assert report["n_params"] == template(64, 4, 16, 97).resolve(33).cost().params


def test_a_training_step_moves_the_weights_and_leaves_no_gradient():
    weight = torch.nn.Linear(3, 2)
    before = weight.weight.detach().clone()
    step = TrainingStep(weight, lambda: weight(torch.ones(1, 3)).square().sum(), "fp32")
    step()
    assert not torch.equal(weight.weight, before)
    assert weight.weight.grad is None
    assert step.state_bytes >= 3 * 4 * (6 + 2)


def test_the_quickstarts_models_take_a_step_and_are_held_to_their_flops(monkeypatch):
    def smaller(variant, times, precision):
        recipe = recipe_of(variant, times, precision)
        train = recipe.train.model_copy(update={"batch_size": 1})
        return recipe.model_copy(update={"seq_len": 32, "train": train})

    report = training.quickstart(1, "bf16", n_rounds=1, recipe=smaller)
    variants = report["variants"]
    for name, factor in training.OVER_FLOPS.items():
        flops = [smaller(each, 1, "bf16").phases[0].model.cost().forward_flops(32) for each in (name, "uniform")]
        assert variants[name]["target"] == pytest.approx(factor * flops[0] / flops[1])
    assert variants["dynamic"]["target"] == training.DYNAMIC_TARGET
    json.dumps(report)


def test_widths_are_spent_as_asked_and_differ_between_tokens():
    recipe = recipe_of("dynamic", 1, "fp32")
    model = build(recipe.phases[0].model, seed=0)
    training.spend(model, 0.6)
    with torch.no_grad():
        choices = model.loss(*random_batch(2048, 2, 33)).choices
    found = torch.stack([chosen["width_fraction"] for chosen in choices])
    assert float(found.mean()) == pytest.approx(0.6, abs=0.03)
    assert float(found.std()) > 0.02


def test_every_size_is_measured_in_both_precisions():
    names = {part.name for part in training.parts(training.FULL, training.LLAMA_SIZES, (1, 2), n_rounds=1)}
    for size in training.FULL:
        assert {f"x_over_uniform/{size.name}/eager/{precision}" for precision in ("fp32", "bf16")} <= names
    for size in training.LLAMA_SIZES:
        assert {f"ours_over_llama/{size.name}/{mode}/bf16" for mode in ("eager", "compiled")} <= names
