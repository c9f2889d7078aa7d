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
@pytest.mark.parametrize(
    ("run", "n_at_least"),
    [("operations", 31), ("growth", 11), ("keep", 21), ("validated", 21), ("mixture", 11), ("rewind", 11)],
)
def test_killed_before_every_file_operation(run, n_at_least, tmp_path):
    """A plain run; one that grows, keeps its best checkpoint, is validated on more, is on a mixture, or goes back."""
    assert n_killed(run, tmp_path) >= n_at_least
