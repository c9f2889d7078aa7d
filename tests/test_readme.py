"""The Python of the README runs, and a type checker accepts it and the examples."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import said_by_script

pytestmark = pytest.mark.hard

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recipes and the example."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "configs").symlink_to(ROOT / "configs")
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    (folder / "example.py").write_text(example)
    return folder


def test_the_example_runs(folder: Path) -> None:
    (said,) = said_by_script(1, folder / "example.py", folder=folder)
    assert re.fullmatch(r"1\.\d+\n", said)  # the synthetic language has less than 2 bits a byte


def test_a_type_checker_accepts_the_examples(folder: Path) -> None:
    scripts = [shutil.copy(script, folder) for script in (ROOT / "examples").glob("*.py")]
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "example.py", *scripts]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
