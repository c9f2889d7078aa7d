"""The GPU benchmark with the CPU in the GPU's place: everything but the numbers."""

import json

import gpu
import pytest
import torch
from workloads import random_batch, template

CPU = gpu.Accelerator("cpu")
SEQ_LEN = 33


def tiny(shape: str):
    return template(64, 4, 16, 97, shape).resolve(SEQ_LEN)


def test_without_a_gpu_it_refuses_in_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--out", str(tmp_path / "gpu.json")]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "CUDA GPU" in captured.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shape", gpu.SHAPES)
def test_results_are_within_the_tolerance_of_their_own_device(shape):
    report = gpu.equality(CPU, shape, ("eager",))
    assert report["relative_errors"]["fp32/eager"] == {"logits": 0.0, "gradients": 0.0}
    assert 0 < report["relative_errors"]["bf16/eager"]["gradients"] < gpu.TOLERANCES["bf16"]


@pytest.mark.parametrize("spoilt", [1.001, float("nan")])
def test_a_deviation_fails(monkeypatch, spoilt):
    exact = gpu.logits_and_gradients
    n_calls = 0

    def second_call_is_off(*arguments, **options):
        nonlocal n_calls
        n_calls += 1
        logits, gradients = exact(*arguments, **options)
        return logits * (1 if n_calls == 1 else spoilt), gradients

    monkeypatch.setattr(gpu, "logits_and_gradients", second_call_is_off)
    with pytest.raises(ArithmeticError, match="x differs"):
        gpu.equality(CPU, "x", ("eager",))


def test_training_steps_report_time_cost_and_memory_of_each_variant():
    models = {"uniform": (tiny("uniform"), "uniform"), "x": (tiny("x"), "uniform")}
    report = gpu.training_steps(CPU, models, SEQ_LEN, 2, compiled=False, n_rounds=2, seconds=60)
    own = report["variants"]["x"]
    assert own["flop_ratio"] == models["x"][0].cost().forward_flops(SEQ_LEN) / models["uniform"][
        0
    ].cost().forward_flops(SEQ_LEN)
    assert own["tokens_per_second"] == 2 * SEQ_LEN / own["wall_seconds"]["median"]
    training_flops = models["x"][0].cost().training_flops(SEQ_LEN)
    assert own["flops_per_second"] == pytest.approx(training_flops * own["tokens_per_second"])
    assert own["state_bytes"] >= 3 * 4 * models["x"][0].cost().params  # weights and two moments in fp32
    assert own["mfu"] is None  # a CPU has no entry among the data sheets
    assert "failed" not in report
    json.dumps(report)


def test_a_variant_that_cannot_run_leaves_the_others(monkeypatch):
    models = {"uniform": (tiny("uniform"), "uniform"), "x": (tiny("x"), "uniform")}
    build = gpu.build

    def build_no_x(config, **options):
        if config is models["x"][0]:
            raise torch.OutOfMemoryError("too large")
        return build(config, **options)

    monkeypatch.setattr(gpu, "build", build_no_x)
    report = gpu.training_steps(CPU, models, SEQ_LEN, 2, compiled=False, n_rounds=1, seconds=60)
    assert list(report["variants"]) == ["uniform"]
    assert report["left_out"] == {"x": "OutOfMemoryError: too large"}
    assert "left out" in report["failed"]


def test_decoding_continues_as_the_model_without_a_cache_does():
    model = gpu.build(tiny("x"), seed=0)
    continued = gpu.decode(model, batch_size=3, n_prompt=5, n_new=4)
    tokens, _ = random_batch(97, 3, 5)
    with torch.no_grad():
        for _ in range(4):
            tokens = torch.cat((tokens, model(tokens)[:, -1:].argmax(dim=-1)), dim=1)
    assert torch.equal(continued, tokens[:, 5:])


def test_decoding_reports_rates_and_cache_sizes():
    configs = {"uniform": tiny("uniform"), "x": tiny("x")}
    report = gpu.decoding(CPU, configs, 2, n_prompt=5, n_new=3, n_rounds=1)
    for name, own in report["variants"].items():
        assert own["tokens_per_second"] == 2 * 3 / own["wall_seconds"]["median"]
        assert own["cache_bytes"] == 2 * (5 + 3) * configs[name].cost().kv_bytes()
    json.dumps(report)


@pytest.mark.parametrize("size", ["200m", "500m"])
def test_the_recipes_of_a_size_are_found_and_matched(size):
    models, seq_len, micro_batch_size = gpu.family(size)
    assert (seq_len, len(models)) == (4096, 4)
    assert micro_batch_size > 0
    for name, (config, baseline) in models.items():
        assert config.n_layers == models[baseline][0].n_layers, name
        assert config.cost().params == pytest.approx(models[baseline][0].cost().params, rel=0.02), name


def test_the_parts_cover_the_plan_within_nine_minutes():
    names = [part.name for part in gpu.parts(CPU)]
    assert len(set(names)) == len(names)
    for expected in (
        "equality/narrowing",
        "training/200m/compiled",
        "training/500m/compiled",
        "decoding/500m/batch_32",
    ):
        assert expected in names


def test_the_rate_of_a_product_counts_two_flops_a_multiplication():
    report = gpu.measured_flops(CPU, n=64)
    assert report["flops_per_second"] > 0
