import json
import math
from pathlib import Path

import numpy as np
import pytest
from fake_comparison import write_run
from hypothesis import given
from hypothesis import strategies as st

from widthwise.records.run import Run
from widthwise.reports.page.curves import Curve, against_flops, by_step, further_heads, mean_over_seeds, thin


def run(metrics: list[dict], path: str = "run") -> Run:
    return Run(path, "", {}, metrics, None)


def test_records_without_the_key_are_left_out_and_the_last_of_a_step_counts() -> None:
    metrics = [
        {"step": 20, "event": "train", "loss": 3.0},
        {"step": 10, "event": "train", "loss": 9.0},
        {"step": 20, "event": "train", "loss": 2.0},
        {"step": 30, "event": "train", "loss": None},
        {"step": 30, "event": "validation", "loss": 7.0},
    ]
    curve = by_step(run(metrics), "train", "loss")
    assert curve.x.tolist() == [10, 20]
    assert curve.y.tolist() == [9, 2]


def test_a_value_that_is_not_finite_is_a_gap() -> None:
    curve = by_step(run([{"step": 1, "event": "train", "loss": math.inf}]), "train", "loss")
    assert curve.is_empty
    assert math.isnan(curve.last)


def test_mean_is_taken_where_all_seeds_have_a_value() -> None:
    short, long = Curve(np.array([1.0, 2.0]), np.array([4.0, 6.0])), Curve(np.array([2.0, 3.0]), np.array([8.0, 1.0]))
    mean = mean_over_seeds([short, long, Curve(np.array([]), np.array([]))])
    assert (mean.x.tolist(), mean.y.tolist()) == ([2.0], [7.0])


def test_flops_are_tokens_times_cost_and_steps_beyond_the_records_are_left_out() -> None:
    metrics = [{"step": step, "event": "train", "tokens": 64 * step} for step in (10, 20)]
    curve = Curve(np.array([5.0, 20.0, 21.0]), np.array([3.0, 2.0, 1.0]))
    flops = against_flops(curve, run(metrics), 7.0)
    assert flops.x.tolist() == [5 * 64 * 7, 20 * 64 * 7]
    assert flops.y.tolist() == [3.0, 2.0]


@given(st.integers(min_value=1, max_value=97), st.integers(min_value=1, max_value=31))
def test_thinning_keeps_the_mean_of_equal_groups(n_groups: int, n_each: int) -> None:
    x = np.arange(n_groups * n_each, dtype=float)
    thinned = thin(Curve(x, x**2), n_groups)
    assert len(thinned.x) == n_groups
    assert thinned.y == pytest.approx((x**2).reshape(n_groups, n_each).mean(axis=1))


def test_a_run_directory_gives_its_records(tmp_path: Path) -> None:
    from widthwise.reports.run.reading import read_run

    write_run(tmp_path / "r", "x", 1, [64, 63], 0.0)
    lines = (tmp_path / "r/metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines if '"validation"' in line]
    assert by_step(read_run(tmp_path / "r"), "validation", "loss").y.tolist() == losses


def test_further_heads_have_a_curve_each_from_validation_alone() -> None:
    records = [
        {"event": "validation", "step": 1, "mtp_losses": [3.0, 4.0]},
        {"event": "train", "step": 2, "mtp_losses": [9.0, 9.0]},
        {"event": "validation", "step": 3, "mtp_losses": [2.5, float("nan")]},
        {"event": "validation", "step": 4},
    ]
    near, far = further_heads(Run("run", "", {}, records, None))
    assert (near.x.tolist(), near.y.tolist()) == ([1, 3], [3.0, 2.5])
    assert far.y[0] == 4.0
    assert np.isnan(far.y[1])
    assert further_heads(Run("run", "", {}, records[3:], None)) == []
