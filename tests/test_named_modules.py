"""Modules that the source names by strings exist, and its floors allow to import them."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "widthwise"
NAME = re.compile(r"""["'](widthwise(?:\.\w+)+)(?::(\w*))?["'{]""")
"""A module, or a name that it defines; in an f-string the text before the first value."""
ENTRY_POINTS = "widthwise.plugins"
"""A group of entry points, not a module."""
ABOVE_ALL = "__init__"
"""The package itself, which gives public names from all floors."""


def test_a_module_that_a_string_names_may_be_imported_there() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    floors = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    floor_of = {room: floor for floor, rooms in enumerate(floors) for room in rooms.split(" | ")}
    n_names = 0
    for path in PACKAGE.rglob("*.py"):
        importer = path.relative_to(PACKAGE).with_suffix("").parts[0]
        for module, attribute in NAME.findall(path.read_text()):
            if module == ENTRY_POINTS:
                continue
            named = PACKAGE.parent / module.replace(".", "/")
            text = (named / "__init__.py" if named.is_dir() else named.with_suffix(".py")).read_text()
            defined = re.findall(r"^(?:class |def )?(\w+)\b", text, re.MULTILINE)
            assert not attribute or attribute in defined, f"{path}: {module}:{attribute}"
            room = module.split(".")[1]
            assert importer in (ABOVE_ALL, room) or floor_of[room] > floor_of[importer], f"{path}: {module}"
            n_names += 1
    assert n_names > 10
