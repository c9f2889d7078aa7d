"""The Dockerfile names what is there. It is built nowhere here: that needs a daemon and gigabytes."""

import fnmatch
import json
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "Dockerfile").read_text().replace("\\\n", "")
STEPS = [line.split(maxsplit=1) for line in TEXT.splitlines() if line and not line.startswith("#")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _all(instruction: str) -> list[str]:
    return [rest for name, rest in STEPS if name == instruction]


def test_what_is_copied_is_there_sent_to_the_build_and_enough_for_the_package() -> None:
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {source for line in _all("COPY") for source in line.split()[:-1]}
    assert copied <= sent
    assert all((ROOT / source).exists() for source in copied)
    needed = {"pyproject.toml", "setup.py", "src", "configs", "README.md", *PROJECT["license-files"]}
    assert needed <= copied


def test_its_python_is_supported_and_its_extras_and_commands_exist() -> None:
    (version,) = re.findall(r"^python:(3\.\d+)-", _all("FROM")[0])
    minimum = PROJECT["requires-python"].removeprefix(">=")
    assert tuple(map(int, version.split("."))) >= tuple(map(int, minimum.split(".")))
    (extras,) = re.findall(r"widthwise\[([^]]+)\]", TEXT)
    assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()
    (entry,) = (json.loads(each) for each in _all("ENTRYPOINT"))
    assert set(entry) <= PROJECT["scripts"].keys()
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    assert fnmatch.filter(constraints, "torch==*")  # the layer of torch has the version of the package's
