"""Recipes as YAML files, with inheritance and overrides.

`read_recipe` reads a file or a bundled recipe, and applies `a.b=c` overrides; `merge` updates a mapping recursively;
`to_yaml` writes a config as text that reads back equal.
"""

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pydantic
import yaml

from widthwise.config_io import to_data
from widthwise.files import read_text
from widthwise.mistakes import UserError

MAX_RECIPE_BYTES = 2**20
"""Largest recipe that is read; bundled recipes have some thousand bytes."""
MOST_ENTRIES = 50_000
"""Limit on the lines plus commas of a text, because PyYAML reads only about ten thousand entries a second."""
PACKAGE = Path(__file__).parent
RECIPE_FOLDERS = (".", "evidence", "papers/models", "papers/recipes")
"""Folders of recipes in `configs`. No two recipes have the same name."""
SOURCES = ("corpus", "path", "mixture")
"""Keys that name the source of data; a data section has one of them."""
SOURCE_OPTIONS = ("tokenizer", "held_out", "verify")
"""Keys of a data section that apply only to its source."""


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML in which a repeated key is an error and `1e-5` is a number.

    Aliases are refused, because nested aliases in a small file can need more than all memory.
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
    """Safe YAML in which text that `_StrictLoader` would parse as a number is quoted."""


_StrictLoader.add_constructor("tag:yaml.org,2002:map", _mapping_without_repeats)
_StrictLoader.add_constructor("tag:yaml.org,2002:int", _integer_of_64_bits)
for _yaml_class in (_StrictLoader, _StrictDumper):
    _yaml_class.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
    )


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML text into plain data. `where` names the text in errors."""
    if text.count(",") + text.count("\n") > MOST_ENTRIES:
        raise UserError(f"{where}: has more than {MOST_ENTRIES:,} entries, which no recipe needs")
    try:
        return yaml.load(text, Loader=_StrictLoader)  # a SafeLoader: constructs plain data only
    # PyYAML's constructors raise the last two for `!!bool x` and `!!timestamp x`.
    except (yaml.YAMLError, ValueError, RecursionError, LookupError, AttributeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark else ""
        raise UserError(f"{where}: is not valid YAML{line} ({getattr(error, 'problem', None) or error})") from None


def recipes_folder() -> Path:
    """Return `configs` of the installed package, or of the imported checkout."""
    inside = PACKAGE / "configs"
    return inside if inside.is_dir() else PACKAGE.parents[1] / "configs"


def bundled_recipes() -> dict[str, Path]:
    """Return the files of all recipes that come with the package, by name."""
    return {path.stem: path for folder in RECIPE_FOLDERS for path in sorted((recipes_folder() / folder).glob("*.yaml"))}


def recipe_path(name: Path | str, folder: Path = Path()) -> Path:
    """Return the path of the file `name` in a folder, or of the bundled recipe of that name if there is no such file.

    If neither exists, return the path in the folder.
    """
    path = folder / name
    if len(Path(name).parts) == 1 and not os.path.lexists(path):
        return bundled_recipes().get(str(name), path)
    return path


def recipe_name(path: Path | str) -> str:
    """Return the name of a recipe's run: `x_200m` for configs/x_200m.yaml and for the bundled recipe x_200m."""
    return recipe_path(path).stem


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping, such as a recipe."""
    if os.path.isdir(path):  # False for an invalid path, where Path.is_dir raises
        example = f", such as {path}/config.yaml of this run" if os.path.isfile(Path(path) / "config.yaml") else ""
        raise UserError(f"{path}: is a folder; expected a recipe file{example}")
    data = parse_yaml(read_text(path, MAX_RECIPE_BYTES), str(path))
    if not isinstance(data, dict):
        raise UserError(f"{path}: holds {type(data).__name__}, not a mapping of keys to values")
    return data


def read_recipe(path: Path | str, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """Return a recipe with its `extends:` chain merged and the overrides `a.b=c` applied.

    A child is merged into its parent, see `merge`. Sections that are null are dropped. A name without a folder, also
    after `extends:`, means a bundled recipe if no such file exists.
    """
    data = _read_with_parents(recipe_path(path), ())
    apply_overrides(data, overrides)
    return {section: value for section, value in data.items() if value is not None}


def _read_with_parents(path: Path, children: tuple[Path, ...]) -> dict[str, Any]:
    if not os.path.lexists(path):
        for name in difflib.get_close_matches(path.stem, bundled_recipes(), 1, 0.8):
            raise UserError(f"{path}: no such file; did you mean {name}, which comes with the package?")
    data = read_mapping(path)  # before `resolve`, which may fail for an unreadable file
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
    """Set each `a.b.3.c=value` in place. Values are YAML; a number in a path is a list index or an integer key.

    An override of the data source removes the keys of the old source, see `merge`, before any override is set, so that
    their order does not matter.
    """
    changes: list[tuple[list[str], Any, str]] = []
    for override in overrides:
        path, equals, text = override.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise UserError(f"override {override!r}: expected path.to.key=value")
        changes.append((keys, parse_yaml(text, f"override {override!r}"), override))
    for keys, value, _ in changes:
        _remove_replaced(data, keys, value)
    for keys, value, override in changes:
        _set(data, keys, value, override)


def _remove_replaced(data: dict[str, Any], keys: list[str], value: Any) -> None:
    """Remove the keys of the old data source from the sections on a path, if setting the value replaces the source."""
    node: Any = data
    for depth, key in enumerate(keys, start=1):
        if not isinstance(node, dict):
            return
        for replaced in replaced_keys(node, {key: value if depth == len(keys) else {}}):
            node.pop(replaced, None)
        node = node.get(key)


def _set(data: dict[str, Any], keys: list[str], value: Any, override: str) -> None:
    """Set the value at a path, creating missing sections. Raises UserError for a path through a plain value."""
    node: Any = data
    for depth in range(1, len(keys)):
        index = _index(node, keys[:depth])
        if isinstance(node, dict) and node.get(index) is None:
            node[index] = {}  # the recipe of a run has null for an absent section
        node = node[index]
        if not isinstance(node, (dict, list)):
            raise UserError(f"override {override!r}: {'.'.join(keys[:depth])} is {node!r}, which has no keys")
    node[_index(node, keys)] = value


def _index(node: dict[Any, Any] | list[Any], path: list[str]) -> Any:
    """Return the last key of a path as a key or index of `node`, the mapping or list that it belongs to."""
    key = path[-1]
    number = int(key) if key.isdecimal() and len(key) < 19 else None
    if isinstance(node, list) and (number is None or number >= len(node)):
        raise UserError(f"override of {'.'.join(path)}: expected an index from 0 to {len(node) - 1}, got {key!r}")
    return key if number is None else number


def merge(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` updated by `change`, recursively, as a new mapping that shares the values of both.

    Mappings are merged key by key; lists and plain values replace the old value. A mapping of another `kind` replaces
    the old mapping, because the two kinds have different keys. A mapping with another data source, such as a path
    instead of a corpus, removes the keys of the old source.
    """
    replaced = replaced_keys(base, change)
    merged = {key: value for key, value in base.items() if key not in replaced}
    for key, value in change.items():
        merged[key] = merge(merged[key], value) if _are_merged(merged.get(key), value) else value
    return merged


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the change for which `merge(old, change)` equals `new`. Sections that `new` lacks are null."""
    replaced = replaced_keys(old, new)
    change: dict[str, Any] = {key: None for key in old if key not in new and key not in replaced}
    for key, value in new.items():
        if key not in old or key in replaced:
            change[key] = value
        elif old[key] != value:
            change[key] = difference(old[key], value) if _are_merged(old[key], value) else value
    return change


def replaced_keys(old: Mapping[str, Any], change: Mapping[str, Any]) -> set[str]:
    """Return the keys that a change removes from a section: all keys of its data source if the change has another.

    A section without a source has the default corpus.
    """
    new_sources = {key for key in SOURCES if change.get(key) is not None}
    old_sources = {key for key in SOURCES if old.get(key) is not None} or {"corpus"}
    if not new_sources or new_sources & old_sources:
        return set()
    return {*SOURCES, *SOURCE_OPTIONS}


def _are_merged(old: Any, new: Any) -> bool:
    """Return True for mappings that are merged key by key: of one kind, or without a kind."""
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return False
    return "kind" not in old or "kind" not in new or old["kind"] == new["kind"]


def to_yaml(config: pydantic.BaseModel) -> str:
    """Return a config as YAML text that reads back equal."""
    return dump_yaml(to_data(config))


def dump_yaml(data: Any) -> str:
    """Return plain data as YAML text that `parse_yaml` reads back equal."""
    return yaml.dump(data, Dumper=_StrictDumper, sort_keys=False, default_flow_style=None, width=120)
