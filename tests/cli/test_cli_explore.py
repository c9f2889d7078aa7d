"""`widthwise explore` as a process: what it prints, serves and imports, and how it ends."""

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

HEAVY = ("torch", "scipy", "matplotlib")
COUNTED_ALONE = f"""
import sys
from widthwise.explorer.answers import Answers
from widthwise.explorer.server import ExplorerServer
from widthwise.explorer.setting import Setting
Answers("x_200m").costs(Setting(d_model=704))
assert not [name for name in {HEAVY} if name in sys.modules]
"""


def test_it_serves_until_ctrl_c_and_its_recipe_inspects_alike(recipe: Path, tmp_path: Path, widthwise) -> None:
    command = [sys.executable, "-m", "widthwise", "explore", recipe, "train.steps=5", "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = re.match(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
        assert url is not None
        query = "?shape=x&turn_width=0.5&d_model=48"
        with urllib.request.urlopen(f"{url[0]}costs{query}", timeout=60) as answer:
            found = json.load(answer)["inspection"]
        with urllib.request.urlopen(f"{url[0]}recipe.yaml{query}", timeout=60) as answer:
            (tmp_path / "explored.yaml").write_bytes(answer.read())
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    code, out, _ = widthwise("inspect", tmp_path / "explored.yaml", "--json")
    assert (code, json.loads(out)) == (0, found)


def test_costs_are_answered_without_heavy_imports() -> None:
    subprocess.run([sys.executable, "-c", COUNTED_ALONE], check=True, timeout=120)


def test_mistakes_end_it_before_anything_is_served(recipe: Path, widthwise) -> None:
    code, _, errors = widthwise("explore", recipe, "model.d_modl=3", "--no-browser")
    assert (code, "did you mean 'd_model'?" in errors) == (2, True)
    code, _, errors = widthwise("explore", recipe, "--port", 70000)
    assert (code, "--port: got 70000" in errors) == (2, True)
