"""A run killed with SIGKILL and resumed ends bitwise as one that never was; kill_runs.py compares."""

import json
from pathlib import Path

import pytest
from ranks import said_by_script

SCRIPT = Path(__file__).with_name("kill_runs.py")


def n_killed(mode: str, folder: Path, *arguments: str) -> int:
    (said,) = said_by_script(1, SCRIPT, mode, folder, *arguments, folder=folder)
    return json.loads(said.splitlines()[-1])["n_killed"]


@pytest.mark.slow
def test_killed_at_12_random_moments(tmp_path):
    assert n_killed("moments", tmp_path, "12", "8") == 12


@pytest.mark.slow
def test_killed_before_every_file_operation(tmp_path):
    assert n_killed("operations", tmp_path) > 30


@pytest.mark.slow
def test_killed_before_every_file_operation_of_a_run_that_grows(tmp_path):
    assert n_killed("growth", tmp_path) > 10


@pytest.mark.slow
def test_killed_before_every_file_operation_of_a_run_that_keeps_its_best_checkpoint(tmp_path):
    assert n_killed("keep", tmp_path) > 20


@pytest.mark.slow
def test_killed_before_every_file_operation_of_a_run_that_is_validated_on_more(tmp_path):
    assert n_killed("validated", tmp_path) > 20


@pytest.mark.slow
def test_killed_before_every_file_operation_of_a_run_on_a_mixture(tmp_path):
    assert n_killed("mixture", tmp_path) > 10


@pytest.mark.slow
def test_killed_before_every_file_operation_of_a_run_that_goes_back(tmp_path):
    assert n_killed("rewind", tmp_path) > 10
