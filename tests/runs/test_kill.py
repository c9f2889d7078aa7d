"""A run killed with SIGKILL and resumed ends bitwise as one that never was; kill_runs.py compares."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("kill_runs.py")
ROOT = Path(__file__).parents[2]


def run_script(*arguments: str) -> int:
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("src", "tests"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, SCRIPT, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["n_killed"]


@pytest.mark.slow
def test_killed_at_12_random_moments(tmp_path):
    assert run_script("moments", str(tmp_path), "12", "8") == 12


@pytest.mark.slow
def test_killed_before_every_file_operation(tmp_path):
    assert run_script("operations", str(tmp_path)) > 30


@pytest.mark.slow
def test_killed_before_every_file_operation_of_a_run_that_grows(tmp_path):
    assert run_script("growth", str(tmp_path)) > 10


@pytest.mark.slow
def test_killed_before_every_file_operation_of_a_run_on_a_mixture(tmp_path):
    assert run_script("mixture", str(tmp_path)) > 10


@pytest.mark.slow
def test_killed_before_every_file_operation_of_a_run_that_goes_back(tmp_path):
    assert run_script("rewind", str(tmp_path)) > 10
