"""`widthwise explore` as a process: what it prints, serves and imports, and how it ends."""

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path


def test_it_serves_until_ctrl_c_and_its_recipe_inspects_alike(recipe: Path, tmp_path: Path, answer) -> None:
    command = [sys.executable, "-m", "widthwise", "explore", recipe, "train.steps=5", "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        url = re.match(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
        query = "?shape=x&turn_width=0.5&d_model=48"
        with urllib.request.urlopen(f"{url[0]}costs{query}", timeout=60) as reply:
            found = json.load(reply)["inspection"]
        with urllib.request.urlopen(f"{url[0]}recipe.yaml{query}", timeout=60) as reply:
            (tmp_path / "explored.yaml").write_bytes(reply.read())
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert answer("inspect", tmp_path / "explored.yaml") == found
