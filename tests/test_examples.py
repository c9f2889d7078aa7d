"""The examples, the notebooks and the Python of the README run as they are, outside the repository, in seconds."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import said_by_script

pytestmark = pytest.mark.hard

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
SAYS = {
    "analyse_model": "page: runs/analysis/report.html",
    "compare_recipes": "page: runs/comparison/report.html",
    "coordinate_check": "muP: power of the width",
    "custom_ffn": "function preserved",
    "design_shape": "kind: x",
    "grow_in_memory": "grown: logits differ by",
    "own_loop": "bits per byte",
    "design_and_compare": "runs/mine/report.html",
    "grow_a_llama": "both generate the same tokens: True",
}
"""What each prints at its end, among other things."""


def _cells(notebook: Path) -> str:
    """The code of a notebook as a script: a kernel for two notebooks would be thirty packages."""
    data = json.loads(notebook.read_text())
    assert (data["nbformat"], data["nbformat_minor"]) == (4, 5)
    return "\n\n".join("".join(cell["source"]) for cell in data["cells"] if cell["cell_type"] == "code") + "\n"


@pytest.mark.parametrize("example", [*SCRIPTS, *NOTEBOOKS], ids=lambda path: path.stem)
def test_an_example_is_short_and_runs(example: Path, tmp_path: Path) -> None:
    if example.stem == "grow_a_llama":
        pytest.importorskip("transformers", reason="needs the extra [hf]")
    script = example
    if example in NOTEBOOKS:
        script = tmp_path / "cells.py"
        script.write_text(_cells(example))
    assert len(script.read_text().splitlines()) < 60
    (printed,) = said_by_script(1, script, folder=tmp_path)
    assert SAYS[example.stem] in printed
    for mark in ("<bound method", "object at 0x", "Traceback"):
        assert mark not in printed + example.read_text()


@pytest.fixture
def readme(tmp_path: Path) -> Path:
    """The example of the README, in a folder with the recipes."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    (tmp_path / "example.py").write_text(example)
    return tmp_path / "example.py"


def test_the_example_of_the_readme_runs(readme: Path) -> None:
    (said,) = said_by_script(1, readme, folder=readme.parent)
    assert re.fullmatch(r"1\.\d+\n", said)  # the synthetic language has less than 2 bits a byte


def test_a_type_checker_accepts_the_examples(readme: Path) -> None:
    scripts = [shutil.copy(script, readme.parent) for script in SCRIPTS]
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, readme.name, *scripts]
    done = subprocess.run(command, cwd=readme.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
