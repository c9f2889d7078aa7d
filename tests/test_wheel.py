"""Source distribution and wheel, used outside the repository in a virtual environment of their own."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE", "constraints.txt")
FOLDERS = ("src", "configs", "docs")
Shell = Callable[..., str]

pytestmark = pytest.mark.hard


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made from the source distribution, so that both are whole."""
    folder = tmp_path_factory.mktemp("built")
    copy = folder / "copy"  # a build leaves files beside the sources
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in SOURCES:
        shutil.copy(ROOT / name, copy)
    build = f"from setuptools import build_meta; build_meta.build_sdist({str(folder)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=copy, check=True, capture_output=True)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*command, str(unpacked)], check=True, capture_output=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def shell(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A program of the virtual environment and its arguments -> what it prints, in a folder of its own.

    Other packages are those of the environment of the tests: installing torch takes minutes. A path in a .pth file is
    searched after the environment's own packages, and .pth files there, as of an editable install, are not read.
    """
    clean, folder = tmp_path_factory.mktemp("clean"), tmp_path_factory.mktemp("elsewhere")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(clean)], check=True)
    python = clean / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index"]
    # With a checkout on the path pip would find the package installed already.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run([*install, str(wheel)], check=True, capture_output=True, env=environment)
    (packages,) = clean.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def run(program: str, *arguments: str) -> str:
        command = [str(clean / "bin" / program), *arguments]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_the_quickstart_works_from_the_wheel(shell: Shell) -> None:
    printed = shell("python", "-c", "import sys, widthwise; print(widthwise.__file__); print(sys.prefix)").split()
    assert printed[0].startswith(printed[1])
    assert "recipes to configs" in shell("widthwise", "init")
    tiny = ("data.corpus=synthetic", "data.tokenizer=bytes", "seq_len=32", "train.steps=3", "train.batch_size=2")
    short = ("schedule.warmup_steps=1", "train.validate_every=3", "train.validation_tokens=64")
    printed = shell("widthwise", "compare", "configs/quickstart.yaml", "--seed", "1", *tiny, *short)
    assert "with 1 seed there is no verdict" in printed
    shell("python", "-c", "open('runs/quickstart/report.html').read()")


def test_what_else_lies_in_the_package_is_found(shell: Shell) -> None:
    assert "training:" in shell("widthwise", "inspect", "x_2b")
    assert "$schema" in shell("widthwise", "schema")
    typed = "from importlib.resources import files; print(files('widthwise').joinpath('py.typed').is_file())"
    assert shell("python", "-c", typed) == "True\n"
