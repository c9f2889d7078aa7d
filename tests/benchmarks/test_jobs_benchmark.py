import json

import jobs
import pytest


def test_a_quick_run_reports_both_ways_and_the_size_of_a_step(tmp_path):
    assert jobs.main(["--quick", "--out", str(tmp_path / "jobs.json")]) == 0
    report = json.loads((tmp_path / "jobs.json").read_text())
    recipe = jobs.sized(1, 2, "bf16", seq_len=32)
    for part in report["parts"].values():
        assert part["step_flops"] == pytest.approx(recipe.phases[0].model.cost().training_flops(32) * 2 * 32)
        one_by_one, both = part["two_threads_step_seconds"], part["side_by_side_step_seconds"]
        assert part["gain"]["median"] == pytest.approx(2 * one_by_one["median"] / both["median"])
