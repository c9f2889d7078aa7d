"""Modules that the source names by strings exist, and its floors allow to import them."""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
NAME = re.compile(r"(widthwise(?:\.\w+)+)(?::(\w*))?")
"""A module, or a name that it defines; in an f-string the text before the first value."""
ENTRY_POINTS = "widthwise.plugins"
"""A group of entry points, not a module."""
ABOVE_ALL = "__init__"
"""The package itself, which gives public names from all floors."""


def _names(path: Path) -> Iterator[re.Match[str]]:
    text = path.read_text()
    if not re.search(rf"[\"']{NAME.pattern}", text):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and (match := NAME.fullmatch(node.value)):
            yield match


@cache
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


def test_a_module_that_a_string_names_may_be_imported_there() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    floors = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    floor_of = {room: floor for floor, rooms in enumerate(floors) for room in rooms.split(" | ")}
    seen = set()
    for path in SOURCE.rglob("*.py"):
        importer = path.relative_to(SOURCE / "widthwise").with_suffix("").parts[0]
        for name in _names(path):
            seen.add(name[0])
            if name[0] == ENTRY_POINTS:
                continue
            module, attribute = name.groups()
            assert not attribute or attribute in _defined(module), f"{path}: {name[0]}"
            room = module.split(".")[1]
            assert importer in (ABOVE_ALL, room) or floor_of[room] > floor_of[importer], f"{path}: {name[0]}"
    assert "widthwise.model.ffn.swiglu_module:SwiGLU" in seen
