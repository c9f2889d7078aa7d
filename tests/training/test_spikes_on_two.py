"""What two processes do about a spike in one of them is what one process does about that of the batch."""

import json
import math
from pathlib import Path

import pytest
from ranks import said_by_script
from spikes_on_two import CASES, trained
from spoilt_batches import spoil
from tiny_runs import outcome, without_measurements

from widthwise.run_dir import RunDir

SCRIPT = Path(__file__).with_name("spikes_on_two.py")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict]]:
    """The runs, and what each process says of them."""
    work = tmp_path_factory.mktemp("two")
    return work, [json.loads(said.splitlines()[-1]) for said in said_by_script(2, SCRIPT, work, folder=work)]


@pytest.mark.parametrize("name", CASES)
def test_a_gradient_of_one_process_that_is_not_finite_is_decided_on_by_all(two, tmp_path, monkeypatch, name) -> None:
    """Each process makes one pass of the rows of which one process makes two, so with whole copies all is bitwise."""
    work, said = two
    assert said[0][name] == said[1][name]
    recipe, batches = CASES[name]
    spoil(monkeypatch, dict.fromkeys(batches, math.nan))
    alone = trained(recipe.model_copy(update={"train": recipe.train.model_copy(update={"shards": 1})}), tmp_path / name)
    assert said[0][name] == (alone and alone.replace(str(tmp_path), str(work)))
    if alone is None and recipe.train.shards == 1:
        assert outcome(work / name) == outcome(tmp_path / name)
    of_two, of_one = ([without_measurements(each) for each in RunDir(at / name).metrics()] for at in (work, tmp_path))
    for found, expected in zip(of_two, of_one, strict=True):
        inexact = {key for key, value in expected.items() if isinstance(value, (float, list))}
        assert {key: found[key] for key in found.keys() - inexact} == {
            key: expected[key] for key in expected.keys() - inexact
        }
        for key in inexact:  # sums in another order, where processes share the weights
            assert found[key] == pytest.approx(expected[key], rel=1e-4)


def test_time_and_memory_are_those_of_the_worst_process_and_mfu_that_of_all_devices(two) -> None:
    """60 tokens in the 2 seconds of the slower process are 15 a second for each of two devices."""
    expected = {"tokens_per_second": 30.0, "step_seconds": 2.0, "mfu": 15.0 * 5, "memory_bytes": 1000}
    assert [said["speed"] for said in two[1]] == [expected, expected]
