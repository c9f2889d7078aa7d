"""YAML on one side, plain data on the other, with the inheritance and the overrides of recipes.

`read_recipe` turns a file and `a.b=c` overrides into one mapping; `to_yaml` writes a config as text that reads back
equal.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pydantic
import yaml

from widthwise.bundled import recipe_path
from widthwise.config_io import UserError, to_data
from widthwise.files import read_text
from widthwise.merging import merge, replaced_keys

MAX_RECIPE_BYTES = 2**20
"""The longest recipe that is read; those of the package have some thousands."""


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML in which a repeated key is an error and `1e-5` is a number.

    Aliases are refused: they can grow a small file beyond any memory.
    """

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.constructor.ConstructorError(None, None, "an alias is not allowed", self.peek_event().start_mark)
        return super().compose_node(parent, index)


def _mapping_without_repeats(loader: _StrictLoader, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
    mapping: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=deep)
        if not isinstance(key, (str, int)):
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is not a name", key_node.start_mark)
        if key in mapping:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} appears twice", key_node.start_mark)
        mapping[key] = loader.construct_object(value_node, deep=True)
    return mapping


def _integer_of_64_bits(loader: _StrictLoader, node: yaml.ScalarNode) -> int:
    value = loader.construct_yaml_int(node)
    if abs(value) >= 2**63:
        raise yaml.constructor.ConstructorError(None, None, "a whole number needs more than 64 bits", node.start_mark)
    return value


class _StrictDumper(yaml.SafeDumper):
    """Quotes the text that `_StrictLoader` would take for a number."""


_StrictLoader.add_constructor("tag:yaml.org,2002:map", _mapping_without_repeats)
_StrictLoader.add_constructor("tag:yaml.org,2002:int", _integer_of_64_bits)
for _yaml_class in (_StrictLoader, _StrictDumper):
    _yaml_class.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
    )


def parse_yaml(text: str, where: str) -> Any:
    """YAML text -> plain data. `where` names the text in an error."""
    try:
        return yaml.load(text, Loader=_StrictLoader)  # a SafeLoader: constructs plain data only
    # The last two are what PyYAML's constructors raise for `!!bool x` and `!!timestamp x`.
    except (yaml.YAMLError, ValueError, RecursionError, LookupError, AttributeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark else ""
        raise UserError(f"{where}: is not valid YAML{line} ({getattr(error, 'problem', None) or error})") from None


def read_mapping(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping, such as a recipe."""
    if os.path.isdir(path):  # False of what no file can be called
        own = f", such as {path}/config.yaml, that of this run" if os.path.isfile(Path(path) / "config.yaml") else ""
        raise UserError(f"{path}: is a folder; expected a recipe file{own}")
    data = parse_yaml(read_text(path, MAX_RECIPE_BYTES), str(path))
    if not isinstance(data, dict):
        raise UserError(f"{path}: holds {type(data).__name__}, not a mapping of keys to values")
    return data


def read_recipe(path: Path | str, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """A recipe file with its `extends:` chain merged and the overrides `a.b=c` applied.

    A child is laid over its parent as `merge` does. Where there is no such file, a name without a folder means a recipe
    that comes with the package, also behind `extends:`.
    """
    data = _read_with_parents(recipe_path(path), ())
    apply_overrides(data, overrides)
    return data


def _read_with_parents(path: Path, children: tuple[Path, ...]) -> dict[str, Any]:
    data = read_mapping(path)  # first, because only what can be read surely has a real path
    path = path.resolve()
    if path in children:
        raise UserError(f"{path}: extends itself through {' -> '.join(str(child) for child in children)}")
    parent = data.pop("extends", None)
    if parent is None:
        return data
    if not isinstance(parent, str):
        raise UserError(f"{path}: extends: got {parent!r}, expected the path of a recipe")
    return merge(_read_with_parents(recipe_path(parent, path.parent), (*children, path)), data)


def apply_overrides(data: dict[str, Any], overrides: Iterable[str]) -> None:
    """Sets each `a.b.3.c=value` in place; a value is read as YAML, numbers index lists or name integer keys.

    They are one change: a source of data that they name replaces what the recipe says of its own, as in `merge`, but
    nothing that they say themselves.
    """
    changes = [_parsed_override(override) for override in overrides]
    for keys, value, _ in changes:
        _remove_replaced(data, keys, value)
    for keys, value, override in changes:
        _set(data, keys, value, override)


def _parsed_override(override: str) -> tuple[list[str], Any, str]:
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise UserError(f"override {override!r}: expected path.to.key=value")
    return keys, parse_yaml(text, f"override {override!r}"), override


def _remove_replaced(data: dict[str, Any], keys: list[str], value: Any) -> None:
    """Takes away what another source of data makes meaningless in the sections that lead to a key."""
    node: Any = data
    for depth, key in enumerate(keys, start=1):
        if not isinstance(node, dict):
            return
        for replaced in replaced_keys(node, {key: value if depth == len(keys) else {}}):
            node.pop(replaced, None)
        node = node.get(key)


def _set(data: dict[str, Any], keys: list[str], value: Any, override: str) -> None:
    node: Any = data
    for depth in range(1, len(keys)):
        index = _index(node, keys[:depth])
        node = node[index] if isinstance(node, list) else node.setdefault(index, {})
        if not isinstance(node, (dict, list)):
            raise UserError(f"override {override!r}: {'.'.join(keys[:depth])} is {node!r}, which has no keys")
    node[_index(node, keys)] = value


def _index(node: dict[Any, Any] | list[Any], path: list[str]) -> Any:
    """Return the meaning of the last key of a path in the node it leads to."""
    key = path[-1]
    number = int(key) if key.isdecimal() and len(key) < 19 else None
    if isinstance(node, list) and (number is None or number >= len(node)):
        raise UserError(f"override of {'.'.join(path)}: expected an index from 0 to {len(node) - 1}, got {key!r}")
    return key if number is None else number


def to_yaml(config: pydantic.BaseModel) -> str:
    """A config as YAML text that reads back equal."""
    return dump_yaml(to_data(config))


def dump_yaml(data: Any) -> str:
    """Plain data as YAML text that `parse_yaml` reads back equal."""
    return yaml.dump(data, Dumper=_StrictDumper, sort_keys=False, default_flow_style=None, width=120)
