"""Norms of gradients in runs."""

import deep_carries
import numpy as np
import pytest
from tiny_runs import tiny_recipe

from widthwise.run_dir import RunDir
from widthwise.runs.train import train


def test_norms_of_steps_after_the_warmup_are_compared_with_their_median(tmp_path, monkeypatch):
    train(tiny_recipe("train.log_every=1"), tmp_path / "run")
    run = RunDir(tmp_path / "run")
    norms = [record["grad_norm"] for record in run.metrics() if record["event"] == "train"]
    assert len(norms) == 9
    after = np.array(norms[2:])  # two steps of warmup
    ratios = after / np.median(after)
    monkeypatch.setattr(deep_carries, "SPIKE", float(np.mean(np.sort(ratios)[-2:])))
    found = deep_carries.gradient_norms(run)
    assert found["n_steps"] == 7
    assert found["median"] == pytest.approx(np.median(after))
    assert found["largest_ratio"] == pytest.approx(ratios.max())
    assert found["n_spikes"] == 1
