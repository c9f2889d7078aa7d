"""Conversion between plain data and frozen pydantic objects.

`parse` turns data into a config object or raises a `UserError` with the path, the value and the allowed values;
`to_data` is its inverse.
"""

import ast
import inspect
import json
import textwrap
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from itertools import pairwise
from types import ModuleType
from typing import Any, TypeVar

import pydantic
from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from widthwise.mistakes import UserError, describe, nearest_hint

ConfigT = TypeVar("ConfigT", bound=pydantic.BaseModel)


@contextmanager
def mistakes_at(path: str) -> Iterator[None]:
    """Turn a ValueError `key: ...` or a ValidationError of the block into a UserError `path.key: ...`."""
    try:
        yield
    except pydantic.ValidationError as error:
        raise UserError(f"{path}.{describe(error)}") from None
    except ValueError as error:
        raise UserError(f"{path}.{error}") from None


@contextmanager
def mistakes_of(what: str) -> Iterator[None]:
    """Prefix the message of a UserError of the block: `what: ...`."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{what}: {error}") from None


@contextmanager
def refusing(what: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn errors of these types in the block into a UserError `what (reason)`. A UserError is raised unchanged."""
    try:
        yield
    except UserError:
        raise
    except errors as error:
        # Messages of libraries may have several lines.
        reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{what} ({reason})") from None


class Config(pydantic.BaseModel):
    """Base class of configs: frozen and strict. Unknown keys are refused with the nearest valid name."""

    model_config = pydantic.ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        defer_build=True,  # a command uses few of the many configs
    )

    @pydantic.model_validator(mode="before")
    @classmethod
    def _check_keys(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        unknown = [key for key in data if key not in cls.model_fields]
        if unknown:
            hint = nearest_hint(str(unknown[0]), cls.model_fields)
            if "kind" not in data or not hint.startswith("allowed: "):
                raise _unknown_key(unknown[0], hint)
            # Often an override changed the kind of the section, and the key belongs to the old kind.
            more = ", ..." if any(field.is_required() for field in cls.model_fields.values()) else ""
            raise _unknown_key(unknown[0], hint, f" of kind {data['kind']}", f"{{kind: {data['kind']}{more}}}")
        return {
            key: _with_default_kind(key, cls.model_fields[key].default, _frozen(value)) for key, value in data.items()
        }

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema with the docstring of each field as its description."""
        json_schema = handler(schema)
        fields = handler.resolve_ref_schema(json_schema).get("properties", {})
        for name, text in attribute_docs(cls).items():
            if name in fields:
                fields[name].setdefault("description", text)
        return json_schema


def attribute_docs(cls: type) -> dict[str, str]:
    """Return a dict from attribute to the docstring below it, of a class and its bases, read from the source.

    An attribute that is declared again loses the docstring of the base. A class without source, such as one typed into
    a shell, has none. `use_attribute_docstrings` of pydantic reads every class when it is declared, which takes longer
    than the rest of `inspect`.
    """
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        for name in vars(base).get("__annotations__", ()):
            docs.pop(name, None)
        docs |= _docs_in_source(base)
    return docs


@cache
def _docs_in_source(cls: type) -> dict[str, str]:
    try:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError, SyntaxError):
        return {}
    assert isinstance(node, ast.ClassDef)
    docs: dict[str, str] = {}
    for statement, below in pairwise(node.body):
        match statement, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = inspect.cleandoc(text)
    return docs


def options_of(mixin: type[Config], config: Config) -> dict[str, Any]:
    """Return a dict from each field of `mixin`, a base class of the config, to its value in the config."""
    return {name: getattr(config, name) for name in mixin.model_fields}


def checked_copy(config: ConfigT, path: str, **changes: Any) -> ConfigT:
    """Return a validated copy with changes (`model_copy` does not validate). Raises UserError `path.key: ...`."""
    with mistakes_at(path):
        values = {name: getattr(config, name) for name in type(config).model_fields}
        return type(config).model_validate({**values, **changes})


def _frozen(value: Any) -> Any:
    """Convert lists to tuples: data has lists, configs have tuples, and strict validation converts neither."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def _with_default_kind(name: str, default: Any, value: Any) -> Any:
    """Add the kind of the default to a section without a kind. Raise an error for a key that this kind does not have.

    Any other value is returned unchanged. name, default: of the field.
    """
    if not isinstance(value, dict) or not isinstance(default, Config) or "kind" in value:
        return value
    fields = type(default).model_fields
    if "kind" not in fields:
        return value
    kind = fields["kind"].default
    for key in value:
        if key not in fields:
            hint = f"without a kind the section is of kind {kind}; {nearest_hint(str(key), fields)}"
            raise _unknown_key(f"{name}.{key}", hint)
    return {"kind": kind, **value}


def _unknown_key(key: Any, hint: str, of_kind: str = "", replacement: str = "") -> PydanticCustomError:
    """Return an error for `mistakes.describe`.

    of_kind: ` of kind KIND` or empty; replacement: the shortest section of that kind, as YAML.
    """
    context = {"key": str(key), "text": f"unknown key{of_kind}; {hint}", "replacement": replacement}
    return PydanticCustomError("unknown_key", "{text}", context)


def check_one_of(where: str, name: str, allowed: Collection[str]) -> None:
    """Raise a UserError `where: got 'd_fff'; did you mean 'd_ff'?` unless the name is allowed."""
    if name not in allowed:
        raise UserError(f"{where}: got {name!r}; {nearest_hint(name, allowed)}")


def parse(config_class: type[ConfigT], data: Any, where: str = "recipe") -> ConfigT:
    """Parse plain data into a config. Raises UserError `where: path: ...` for the first mistake."""
    try:
        json.dumps(data)  # refuses dates, sets, cycles and numbers too long to print
        return config_class.model_validate(data)
    except pydantic.ValidationError as error:
        raise UserError(f"{where}: {describe(error, data)}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{where}: holds a value that is not plain data ({error})") from None


def differences(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the differences of two pieces of plain data: dotted path, value before and after, None if missing."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before | after:
            yield from differences(before.get(key), after.get(key), f"{path}.{key}" if path else str(key))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, pair in enumerate(zip(before, after)):
            yield from differences(*pair, f"{path}.{index}")
    elif before != after:
        yield path, before, after


def to_data(config: pydantic.BaseModel) -> dict[str, Any]:
    """Return a config as plain data; `parse(type(config), to_data(config)) == config`."""
    return _thawed(config.model_dump())


def _thawed(value: Any) -> Any:
    """Convert tuples to lists, the inverse of `_frozen`."""
    if isinstance(value, dict):
        return {key: _thawed(item) for key, item in value.items()}
    return [_thawed(item) for item in value] if isinstance(value, (list, tuple)) else value


def require(module: str, extra: str) -> ModuleType:
    """Import an optional dependency. Raises a UserError that names the extra to install if it is missing."""
    try:
        return import_module(module)
    except ImportError:
        raise UserError(f"{module} is not installed; run: pip install 'widthwise[{extra}]'") from None
