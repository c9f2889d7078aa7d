"""Recipes: YAML with inheritance and overrides on one side, frozen pydantic objects on the other.

`read_recipe` turns a file and `a.b=c` overrides into one plain mapping; `parse` turns the mapping into a config object
or raises a `UserError` that names the path, the value and what is allowed; `to_yaml` writes a config so that it reads
back equal.
"""

import difflib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pydantic
import yaml
from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from widthwise.bundled import recipe_path
from widthwise.merging import merge, replaced_keys

ConfigT = TypeVar("ConfigT", bound=pydantic.BaseModel)


class UserError(ValueError):
    """A mistake the user can mend. Its message is one line; the command line prints it and exits with code 2."""

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))


@contextmanager
def mistakes_at(path: str) -> Iterator[None]:
    """What is raised inside as a ValueError `key: ...`, by a config too, leaves as a UserError `path.key: ...`."""
    try:
        yield
    except pydantic.ValidationError as error:
        raise UserError(f"{path}.{_describe(error, _data_at_fault(error))}") from None
    except ValueError as error:
        raise UserError(f"{path}.{error}") from None


class Config(pydantic.BaseModel):
    """Base of every config: frozen, strict, closed. Unknown keys are refused with the nearest valid name."""

    model_config = pydantic.ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        defer_build=True,  # of the many configs a command uses few
    )

    @pydantic.model_validator(mode="before")
    @classmethod
    def _check_keys(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        unknown = [key for key in data if key not in cls.model_fields]
        if unknown:
            hint = nearest_hint(str(unknown[0]), cls.model_fields)
            section = cls._section(data["kind"]) if "kind" in data else ""
            context = {"key": str(unknown[0]), "hint": hint, "kind": str(data.get("kind")), "section": section}
            raise PydanticCustomError("unknown_key", "unknown key; {hint}", context)
        return {key: _of_default_kind(cls.model_fields[key].default, _frozen(value)) for key, value in data.items()}

    @classmethod
    def _section(cls, kind: Any) -> str:
        """The smallest section of this kind, as `{kind: uniform}`, with dots where more is required."""
        more = ", ..." if any(field.is_required() for field in cls.model_fields.values()) else ""
        return f"{{kind: {kind}{more}}}"

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """With the docstring of each field as its description."""
        from widthwise.attribute_docs import attribute_docs

        found = handler(schema)
        fields = handler.resolve_ref_schema(found).get("properties", {})
        for name, text in attribute_docs(cls).items():
            if name in fields:
                fields[name].setdefault("description", text)
        return found


def options_of(mixin: type[Config], config: Config) -> dict[str, Any]:
    """The config's values of the fields that it has from a base which other configs share."""
    return {name: getattr(config, name) for name in mixin.model_fields}


def checked_copy(config: ConfigT, path: str, **changes: Any) -> ConfigT:
    """A copy with changes that is validated, as one of `model_copy` is not. Raises UserError `path.key: ...`."""
    with mistakes_at(path):
        values = {name: getattr(config, name) for name in type(config).model_fields}
        return type(config).model_validate({**values, **changes})


def _frozen(value: Any) -> Any:
    """Lists as tuples: data has only the one, configs only the other, and strict validation converts neither."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def _of_default_kind(default: Any, value: Any) -> Any:
    """A section that names no kind is of the kind it has where it is left out, if that kind has all its keys."""
    if not isinstance(value, dict) or not isinstance(default, Config) or "kind" in value:
        return value
    fields = type(default).model_fields
    return {"kind": fields["kind"].default, **value} if {"kind", *value} <= set(fields) else value


def nearest_hint(name: str, allowed: Iterable[str]) -> str:
    """ "did you mean 'd_ff'?" where a valid name is near, else the list of valid names."""
    names = [str(item) for item in allowed]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean '{near[0]}'?" if near else f"allowed: {', '.join(sorted(names))}"


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
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", key_node.start_mark)
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


def read_text(path: Path) -> str:
    """The text of a file. Raises UserError where it is missing, a folder, unreadable or not UTF-8."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8 text") from None
    except ValueError as error:  # a zero byte in the path
        raise UserError(f"{str(path)!r}: cannot be read ({error})") from None


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
    data = parse_yaml(read_text(path), str(path))
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
    """What the last key of a path stands for in the node it leads to."""
    key = path[-1]
    number = int(key) if key.isdecimal() and len(key) < 19 else None
    if isinstance(node, list) and (number is None or number >= len(node)):
        raise UserError(f"override of {'.'.join(path)}: expected an index from 0 to {len(node) - 1}, got {key!r}")
    return key if number is None else number


def parse(config_class: type[ConfigT], data: Any, where: str = "recipe") -> ConfigT:
    """Plain data -> a config object. Raises a UserError `where: path: value: what is allowed` for the first mistake."""
    try:
        json.dumps(data)  # refuses what is not plain data: dates, sets, circles, numbers too long to print
        return config_class.model_validate(data)
    except pydantic.ValidationError as error:
        raise UserError(f"{where}: {_describe(error, data)}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{where}: holds a value that is not plain data ({error})") from None


def _describe(error: pydantic.ValidationError, data: Any) -> str:
    details = error.errors(include_url=False)
    first, more = details[0], len(details) - 1
    context = first.get("ctx", {})
    path = _data_path(first["loc"], data)
    value = first.get("input")
    match first["type"]:
        case "unknown_key":
            text = f"{'.'.join([*path, context['key']])}: {_unknown_key('.'.join(path), **context)}"
        case "missing":
            text = f"{'.'.join([*path, str(first['loc'][-1])])}: is required but missing"
        case "union_tag_invalid":
            allowed = [tag.strip("' ") for tag in str(context["expected_tags"]).split(",")]
            tag = str(context["tag"])
            text = f"{'.'.join([*path, 'kind'])}: got {tag!r}; {nearest_hint(tag, allowed)}"
        case "unknown_kind":
            text = f"{'.'.join([*path, 'kind'])}: {first['msg']}"
        case "union_tag_not_found":
            text = f"{'.'.join([*path, 'kind'])}: is required but missing"
        case "value_error" | "assertion_error":
            message = str(context.get("error", first["msg"]))
            text = f"{'.'.join(path)}: {message}" if path else message
        case _:
            allowed = f"{first['msg'][0].lower()}{first['msg'][1:]}"
            text = f"{'.'.join(path) or 'the recipe'}: got {shortened(value)}; {allowed}"
    return text + (f" (and {more} more)" if more else "")


def _unknown_key(path: str, kind: str, section: str, hint: str, **_: str) -> str:
    """What is wrong with a key: often it is of the kind that its section had before an override named another."""
    if not section or hint.startswith("did you mean"):
        return f"unknown key; {hint}"
    remedy = f"; to change the kind, replace the section: '{path}={section}'" if path else ""
    return f"unknown key of kind {kind}; {hint}{remedy}"


def _data_at_fault(error: pydantic.ValidationError) -> dict[Any, Any]:
    """Where nothing is known of the data: that they have what pydantic names."""
    first = error.errors(include_url=False)[0]
    data: dict[Any, Any] = {}
    for part in reversed(first["loc"][:-1] if first["type"] == "missing" else first["loc"]):
        data = {part: data}
    return data


def _data_path(location: tuple[int | str, ...], data: Any) -> list[str]:
    """Keeps the parts of a pydantic location that are keys of the data: union tags and type names are not."""
    path: list[str] = []
    node = data
    for part in location:
        if isinstance(node, Mapping) and (part in node or str(part) in {str(key) for key in node}):
            node = next(value for key, value in node.items() if str(key) == str(part))
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            node = node[part]
        else:
            continue
        path.append(str(part))
    return path


def shortened(value: Any) -> str:
    """A value as it stands in an error."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def differences(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two pieces of plain data differ: the dotted path, and the value on each side, None where it has none."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before | after:
            yield from differences(before.get(key), after.get(key), f"{path}.{key}" if path else str(key))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, pair in enumerate(zip(before, after)):
            yield from differences(*pair, f"{path}.{index}")
    elif before != after:
        yield path, before, after


def to_data(config: pydantic.BaseModel) -> dict[str, Any]:
    """A config as plain data; `parse(type(config), to_data(config)) == config`."""
    return _thawed(config.model_dump())


def _thawed(value: Any) -> Any:
    """Tuples as lists, the opposite of `_frozen`."""
    if isinstance(value, dict):
        return {key: _thawed(item) for key, item in value.items()}
    return [_thawed(item) for item in value] if isinstance(value, (list, tuple)) else value


def to_yaml(config: pydantic.BaseModel) -> str:
    """A config as YAML text that reads back equal."""
    return dump_yaml(to_data(config))


def dump_yaml(data: Any) -> str:
    """Plain data as YAML text that `parse_yaml` reads back equal."""
    return yaml.dump(data, Dumper=_StrictDumper, sort_keys=False, default_flow_style=None, width=120)
