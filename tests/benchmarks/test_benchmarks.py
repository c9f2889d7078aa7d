"""Every benchmark runs in its toy size and writes what it measured."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
QUICK = "decode growth jobs loader preparation quickstart step_shares training virtual_width".split()  # noqa: SIM905


@pytest.mark.hard
@pytest.mark.parametrize("name", QUICK)
def test_it_runs_and_writes_its_results(name: str, tmp_path: Path) -> None:
    """Where it compiles, what it would compile runs as it is, which takes seconds and not minutes."""
    command = [sys.executable, str(FOLDER / f"{name}.py"), "--quick", "--out", str(tmp_path / "found.json")]
    subprocess.run(command, check=True, cwd=FOLDER.parent, env={**os.environ, "TORCHDYNAMO_DISABLE": "1"})
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["environment"]
    assert not found.get("failed")
