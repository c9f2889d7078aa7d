"""A run killed with SIGKILL and resumed ends bitwise as one that never was; kill_runs.py compares."""

import json
from pathlib import Path

import pytest
from ranks import said_by_script
from thinned import hard_but

SCRIPT = Path(__file__).with_name("kill_runs.py")
STATES = {"plain": 31, "growth": 11, "keep": 21}
"""Kind of run -> how many different states its file operations leave at least."""


def n_killed(mode: str, folder: Path, *arguments: str) -> int:
    (said,) = said_by_script(1, SCRIPT, mode, folder, *arguments, folder=folder)
    return json.loads(said.splitlines()[-1])["n_killed"]


@pytest.mark.parametrize("n", hard_but([4], [4, 70]))
def test_killed_at_random_moments(n, tmp_path):
    assert n_killed("moments", tmp_path, str(n), "8") == n


@pytest.mark.parametrize("kind", hard_but(["plain"], STATES))
def test_killed_before_every_file_operation(kind, tmp_path):
    assert n_killed(kind, tmp_path) >= STATES[kind]
