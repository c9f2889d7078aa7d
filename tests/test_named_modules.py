"""Modules that the source names by strings exist, and its floors allow to import them."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
FLOORS = next(contract["layers"] for contract in CONTRACTS if contract["type"] == "layers")
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms.split(" | ")}
"""Folder or module of the package -> its floor, counted from the top."""
ABOVE_ALL = "__init__"
"""The package itself, which gives public names from all floors."""
NAME = re.compile(r"(widthwise(?:\.\w+)+)(?::(\w*))?")
"""A module, or what it defines; in an f-string the text before the first value."""
ENTRY_POINTS = "widthwise.plugins"
"""A group of entry points, not a module."""


def _strings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAME.fullmatch(node.value):
            yield node.value


NAMED = sorted({(str(path.relative_to(SOURCE)), name) for path in SOURCE.rglob("*.py") for name in _strings(path)})


def _defined(module: str) -> set[str]:
    """Return the functions, classes and constants of a module."""
    path = SOURCE / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    names = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def test_strings_that_name_modules_are_found() -> None:
    assert ("widthwise/model/ffn/swiglu.py", "widthwise.model.ffn.swiglu_module:SwiGLU") in NAMED


@pytest.mark.parametrize(("importer", "name"), [pair for pair in NAMED if pair[1] != ENTRY_POINTS])
def test_a_module_that_a_string_names_may_be_imported_there(importer: str, name: str) -> None:
    match = NAME.fullmatch(name)
    assert match is not None
    module, attribute = match.groups()
    names = _defined(module)
    assert not attribute or attribute in names
    room = module.split(".")[1]
    importers_room = importer.removesuffix(".py").split("/")[1]
    assert importers_room == ABOVE_ALL or room == importers_room or FLOOR_OF[room] > FLOOR_OF[importers_room]
