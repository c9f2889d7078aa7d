"""What the processes of one worker agree on; crew_processes.py is one of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.hard

SCRIPT = Path(__file__).with_name("crew_processes.py")
ROOT = Path(__file__).parents[2]


def test_all_processes_get_what_the_first_has_and_a_signal_to_any_ends_all() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(SCRIPT)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    expected = {
        "value": [3, 5],
        "mistake": "UserError: nothing there",
        "waiting": "Interrupted: stopped before the next run",
    }
    assert [json.loads(line) for line in done.stdout.splitlines()] == [expected, expected]
