import json

import pytest
import torch
import training
from workloads import TrainingStep, template

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


def test_every_size_is_measured_in_both_precisions():
    names = {part.name for part in training.parts(training.FULL, training.LLAMA_SIZES, n_rounds=1)}
    for size in training.FULL:
        assert {f"x_over_uniform/{size.name}/eager/{precision}" for precision in ("fp32", "bf16")} <= names
    for size in training.LLAMA_SIZES:
        assert {f"ours_over_llama/{size.name}/{mode}/bf16" for mode in ("eager", "compiled")} <= names
