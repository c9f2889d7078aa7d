"""The benchmark of boundaries with the CPU in the GPU's place, where the dispatch runs the reference for Triton."""

import json

import boundary
import gpu
import pytest
import torch

CPU = gpu.Accelerator("cpu")
SIZE = boundary.Size(2, 3, 10)


@pytest.fixture
def pretended(monkeypatch):
    monkeypatch.setattr(boundary, "use_triton", lambda x: True)


def test_without_triton_it_says_so(monkeypatch):
    monkeypatch.setattr(boundary, "use_triton", lambda x: False)
    for report in (
        boundary.boundary_equality(CPU, SIZE, n_tokens=7),
        boundary.boundary_speed(CPU, SIZE, 7, 2, compiled=False),
    ):
        assert report == {"summary": boundary.WITHOUT_TRITON}


@pytest.mark.usefixtures("pretended")
def test_errors_are_those_of_the_type():
    report = boundary.boundary_equality(CPU, SIZE, n_tokens=7)
    for dtype, tolerance in boundary.TOLERANCES.items():
        assert 0 < report[str(dtype)]["triton"] == report[str(dtype)]["eager"] < tolerance


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("spoilt", [1.1, float("nan")])
def test_a_deviation_fails(monkeypatch, spoilt):
    def spoil(*arguments):
        state, x, coefficients = boundary.reference.boundary(*arguments)
        return state, spoilt * x, coefficients

    monkeypatch.setattr(boundary, "boundary", spoil)
    with pytest.raises(ArithmeticError):
        boundary.boundary_equality(CPU, SIZE, n_tokens=7)


@pytest.mark.usefixtures("pretended")
def test_other_bits_the_second_time_fail(monkeypatch):
    n_calls = iter(range(100))

    def drift(*arguments):
        state, x, coefficients = boundary.reference.boundary(*arguments)
        return state, x, coefficients + 1e-6 * next(n_calls)

    monkeypatch.setattr(boundary, "boundary", drift)
    with pytest.raises(ArithmeticError, match="other bits"):
        boundary.boundary_equality(CPU, SIZE, n_tokens=7)


@pytest.mark.usefixtures("pretended")
def test_speed_is_reported_against_the_floor_of_bytes():
    report = boundary.boundary_speed(CPU, SIZE, 7, 2, compiled=False)
    # 1.5 states, 1 update, 1.5 new states and 1 x of 10 bf16 numbers forward; with backward 5 * 1.5 + 5 of them.
    assert report["forward"]["floor_bytes"] == 7 * 2 * (15 + 10 + 15 + 10)
    assert report["forward_backward"]["floor_bytes"] == 7 * 2 * (75 + 50)
    own = report["forward"]["variants"]["triton"]
    assert own["bytes_per_second"] == report["forward"]["floor_bytes"] / own["wall_seconds"]["median"]
    json.dumps(report)


def test_only_the_parts_that_are_asked_for_run(monkeypatch, tmp_path):
    ran = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "run_parts", lambda parts, *_, **__: ran.extend(part.name for part in parts) or True)
    assert gpu.main(["--only", "boundary", "--out", str(tmp_path / "gpu.json")]) == 0
    assert sorted(ran) == sorted(part.name for part in gpu.parts(CPU) if part.name.startswith("boundary/"))
    assert len(ran) == 2 * len(boundary.SIZES)
