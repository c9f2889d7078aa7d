import json

import pytest
import step_time
import torch

from widthwise.runs import rates as rates_module


@pytest.fixture(autouse=True)
def few_calls(monkeypatch):
    monkeypatch.setattr(rates_module, "N_LINKS", 2)
    monkeypatch.setattr(rates_module, "PRODUCTS", rates_module.PRODUCTS[:3])


def test_every_shape_is_predicted_and_measured():
    size = step_time.Size(d_model=48, head_dim=8, n_layers=4, vocab_size=97, seq_len=33, batch_size=2)
    models = step_time.shapes(size)
    assert len(models) == 12
    report = step_time.predicted_and_measured(models, size, "fp32", n_rounds=1)
    for name, found in report["shapes"].items():
        assert found["ratio"] == found["predicted_seconds"] / found["measured_seconds"] > 0
        assert found["predicted_seconds"] == sum(found["predicted"].values())
        assert found["n_params"] == models[name].cost().params
    json.dumps(report)


def test_the_shape_that_design_chooses_is_measured_beside_the_uniform_model():
    report = step_time.choice_over_uniform("bf16", step_time.SMALLER, n_rounds=1)
    variants = report["variants"]
    assert set(variants) == {"uniform", "usual", "chosen"}
    assert variants["uniform"]["predicted_ratio"] == variants["uniform"]["cpu_ratio"]["median"] == 1
    assert variants["chosen"]["predicted_ratio"] <= variants["usual"]["predicted_ratio"] * 1.05
    assert variants["chosen"]["params_ratio"] == pytest.approx(1, abs=0.005)
    json.dumps(report)


def test_steps_move_the_weights():
    size = step_time.QUICK
    step = step_time.Step(step_time.shapes(size)["uniform"], 2, size.seq_len, "fp32")
    before = [parameter.detach().clone() for parameter in step.model.parameters()]
    step()
    assert any(not torch.equal(a, b) for a, b in zip(before, step.model.parameters(), strict=True))
