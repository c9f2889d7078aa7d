"""Speed, FLOPs utilization and memory of a run."""

import sys
import time

import pytest
import torch
from tiny_runs import Listener, records, tiny_recipe

from widthwise.data.loader import Loader
from widthwise.runs.train import train
from widthwise.training.devices import known_gpu
from widthwise.training.metrics import PeakMemory, model_flops_utilization


def test_peak_is_that_of_the_data_sheet_or_unknown():
    for name, peak in (
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H200 NVL", 835e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA RTX 6000 Ada Generation", 364.2e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None),
        ("NVIDIA A10G", None),
        ("Some other GPU", None),
    ):
        gpu = known_gpu(name)
        assert (gpu and gpu.peak_flops_per_second) == peak


def test_utilization_is_required_over_possible_flops_and_unknown_on_a_cpu(monkeypatch):
    assert model_flops_utilization(1000.0, 1e9, torch.device("cpu")) is None
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    assert model_flops_utilization(1e5, 1.56e9, torch.device("cuda")) == pytest.approx(0.5)


@pytest.mark.hard
def test_memory_of_the_process_includes_what_was_just_allocated():
    memory = PeakMemory(torch.device("cpu"))
    before = memory.n_bytes()
    if before is None:
        pytest.skip("this system cannot reset its count")
    held = bytearray(before)
    held[::1024] = b"x" * len(held[::1024])
    assert sys.getsizeof(held) <= (memory.n_bytes() or 0) < 3 * before


def test_the_time_of_a_step_leaves_out_what_happens_between_steps(tmp_path, monkeypatch):
    now = 100.0

    def pass_time(seconds):
        nonlocal now
        now += seconds

    batch = Loader.batch
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    monkeypatch.setattr(Loader, "batch", lambda loader, step: pass_time(step + 1.0) or batch(loader, step))
    train(tiny_recipe(), tmp_path / "run", Listener(lambda step: pass_time(50.0)))
    means = [record["step_seconds"] for record in records(tmp_path / "run", "train")]
    assert means == pytest.approx([(1 + 2 + 3 + 4) / 4, (5 + 6 + 7 + 8) / 4, 9])
