import json

import growth


def test_every_part_runs_in_its_own_process_and_grows_what_it_says(tmp_path):
    assert growth.main(["--quick", "--out", str(tmp_path / "found.json")]) == 0
    parts = json.loads((tmp_path / "found.json").read_text())["parts"]
    assert set(parts) == set(growth.PARTS)
    plan = growth.growth("quick")
    for found in parts.values():
        assert found["n_params"] == plan.old.cost().params
        assert found["n_params_grown"] == plan.new.cost().params > found["n_params"]
        assert found["weight_bytes"] == 4 * found["n_params"]
        assert found["peak_ratio"] == found["peak_bytes"] / found["weight_bytes"]
        assert found["meets_targets"] == (found["seconds"] < 60 and found["peak_ratio"] < 3)


def test_a_billion_parameters_are_a_billion():
    assert 1.0e9 < growth.model("full").cost().params < 1.1e9
