import json

import growth
import pytest


@pytest.mark.parametrize("part", list(growth.PARTS))
def test_a_part_runs_in_its_own_process_and_grows_what_it_says(part):
    found = growth.in_own_process(part, "quick", seconds=120)
    plan = growth.growth("quick")
    assert found["n_params"] == plan.old.cost().params
    assert found["n_params_grown"] == plan.new.cost().params > found["n_params"]
    assert found["weight_bytes"] == 4 * found["n_params"]
    assert found["peak_ratio"] == found["peak_bytes"] / found["weight_bytes"]
    assert found["meets_targets"] == (found["seconds"] < 60 and found["peak_ratio"] < 3)


def test_the_file_holds_every_part(tmp_path):
    assert growth.main(["--quick", "--out", str(tmp_path / "found.json")]) == 0
    assert set(json.loads((tmp_path / "found.json").read_text())["parts"]) == set(growth.PARTS)


def test_a_billion_parameters_are_a_billion():
    assert 1.0e9 < growth.model("full").cost().params < 1.1e9
