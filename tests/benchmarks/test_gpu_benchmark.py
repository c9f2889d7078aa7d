"""The GPU benchmark with the CPU in the GPU's place: everything but the numbers."""

import gpu
import pytest
import torch
from thinned import hard_but
from workloads import template

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


@pytest.mark.parametrize("shape", hard_but(["x"], gpu.SHAPES))
def test_results_are_within_the_tolerance_of_their_own_device(shape):
    report = gpu.equality(CPU, shape, ("eager",))
    assert report["relative_errors"]["fp32/eager"] == {"logits": 0.0, "gradients": 0.0}
    assert 0 < report["relative_errors"]["bf16/eager"]["gradients"] < gpu.TOLERANCES["bf16"]


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
