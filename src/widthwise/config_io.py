"""Plain data on one side, frozen pydantic objects on the other.

`parse` turns data into a config object or raises a `UserError` that names the path, the value and what is allowed;
`to_data` turns it back.
"""

import ast
import difflib
import inspect
import json
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from itertools import pairwise
from types import ModuleType
from typing import Any, TypeVar

import pydantic
from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

ConfigT = TypeVar("ConfigT", bound=pydantic.BaseModel)


LONGEST_WORD, LONGEST_MESSAGE = 500, 5000
"""Characters of a word and of a whole message. Longer text loses its middle: its end names the allowed values."""


class UserError(ValueError):
    """A mistake that the user can fix. The message is one line; the command line prints it and exits with code 2."""

    def __init__(self, message: str):
        line = " ".join(_without_middle(word, LONGEST_WORD) for word in message.split())
        super().__init__(_without_middle(line, LONGEST_MESSAGE))


def _without_middle(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest // 5]}...{text[-longest // 5 :]}"


@contextmanager
def mistakes_at(path: str) -> Iterator[None]:
    """Turn a ValueError `key: ...` raised inside, by a config too, into a UserError `path.key: ...`."""
    try:
        yield
    except pydantic.ValidationError as error:
        raise UserError(f"{path}.{_describe(error)}") from None
    except ValueError as error:
        raise UserError(f"{path}.{error}") from None


@contextmanager
def mistakes_of(what: str) -> Iterator[None]:
    """Begin the message of a UserError raised inside with what it is about: `what: ...`."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{what}: {error}") from None


@contextmanager
def refusing(what: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn these errors, raised inside, into a UserError `what (reason)`. A UserError is raised unchanged."""
    try:
        yield
    except UserError:
        raise
    except errors as error:
        message = " ".join(str(error).split())  # messages of libraries may have several lines
        reason = getattr(error, "strerror", None) or message or type(error).__name__
        raise UserError(f"{what} ({reason})") from None


class Config(pydantic.BaseModel):
    """Base of every config: frozen, strict, closed. Unknown keys are refused with the nearest valid name."""

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
            # Often the key belongs to the kind that its section had before an override named another.
            more = ", ..." if any(field.is_required() for field in cls.model_fields.values()) else ""
            raise _unknown_key(unknown[0], hint, f" of kind {data['kind']}", f"{{kind: {data['kind']}{more}}}")
        return {
            key: _of_default_kind(key, cls.model_fields[key].default, _frozen(value)) for key, value in data.items()
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


def _docs_in_source(cls: type) -> dict[str, str]:
    try:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError, SyntaxError):
        return {}
    assert isinstance(node, ast.ClassDef)
    return {
        attribute.target.id: inspect.cleandoc(below.value.value)
        for attribute, below in pairwise(node.body)
        if isinstance(attribute, ast.AnnAssign)
        and isinstance(attribute.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }


def options_of(mixin: type[Config], config: Config) -> dict[str, Any]:
    """Return the config's values of the fields that it inherits from a shared base."""
    return {name: getattr(config, name) for name in mixin.model_fields}


def checked_copy(config: ConfigT, path: str, **changes: Any) -> ConfigT:
    """Return a validated copy with changes (`model_copy` does not validate). Raises UserError `path.key: ...`."""
    with mistakes_at(path):
        values = {name: getattr(config, name) for name in type(config).model_fields}
        return type(config).model_validate({**values, **changes})


def _frozen(value: Any) -> Any:
    """Convert lists to tuples: data has lists, configs have tuples, and strict validation converts neither."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def _of_default_kind(name: str, default: Any, value: Any) -> Any:
    """Give a section without a kind the kind of its default, if that kind has all its keys."""
    if not isinstance(value, dict) or not isinstance(default, Config) or "kind" in value:
        return value
    fields = type(default).model_fields
    if "kind" not in fields:
        return value
    kind = fields["kind"].default
    if unknown := [str(key) for key in value if key not in fields]:
        hint = f"without a kind the section is of kind {kind}; {nearest_hint(unknown[0], fields)}"
        raise _unknown_key(f"{name}.{unknown[0]}", hint)
    return {"kind": kind, **value}


def _unknown_key(key: Any, hint: str, of: str = "", replacement: str = "") -> PydanticCustomError:
    """Return an error for `_describe`. replacement: the smallest section of the kind."""
    context = {"key": str(key), "text": f"unknown key{of}; {hint}", "replacement": replacement}
    return PydanticCustomError("unknown_key", "{text}", context)


REMOVED = {
    "ngrams": "embeddings of n-grams were removed; a larger vocab_size or mtp is the nearest",
    "dynamic_hourglass": "feed-forward dynamic_hourglass was removed; use hourglass with fewer blocks, or dynamic",
    "anneal": "mask anneal was removed; use ste, or soft with learn_temperature",
    "linear_ramp": "mask linear_ramp was removed; use ste",
    "nested": "mask nested was removed; use `train.nested`",
    "rms_mean": "score rms_mean was removed; use linear, or raw_mean",
    "at_tokens": "was removed; give at_step, the tokens over those of a step",
    "rewarmup_of": "was removed; the rates of all entries rise, and freeze_steps lets the new ones learn alone",
    "--rewarmup-of": "was removed; the rates of all entries rise, and --freeze-steps lets the new ones learn alone",
    "--storage": "was removed; a search keeps its study in the file study.log of its folder, which workers share",
    "--study": "was removed; a search keeps its study in the file study.log of its folder, one for each --out",
    "trend": "was removed; `fit FOLDER --group folder --x QUANTITY --law log_linear` draws the line",
    "tune": "was removed; `sweep RECIPE --over optimizer.lr=...`, then `compare RECIPE --rates-from FOLDER`",
    "ladder": "was removed; use a `sweep` section with rungs, tokens_per_param and groups",
    "--ladder": "was removed; give the sweep section of the recipe rungs",
    "bake": "was removed; `widthwise export` folds the constants that growth kept into the weights",
    "pad": "was removed; `widthwise export --pad-heads` pads heads; give other sizes to `widthwise grow`",
    "checkpoint": "was removed; every verb reads checkpoints in several files, and `widthwise export` writes one file",
    "lm_eval": "was removed; use `widthwise eval --task`, or `lm_eval --model hf` on a folder of `widthwise export`",
    "paper": "was removed; `python benchmarks/paper.py` of the repository shows the tables and figures of the papers",
    "--n-devices": "was removed; give --devices",
    "--bandwidth": "was removed; `plan` has --memory-bandwidth, --node-bandwidth and --network-bandwidth",
    "--devices": "was removed; `widthwise plan RECIPE --devices 1,8` predicts memory, traffic and time",
    "--device": "was removed; `widthwise plan RECIPE --device NAME` predicts memory, traffic and time",
    "--mfu": "was removed; `widthwise plan RECIPE --device NAME --mfu` predicts times",
}
"""Removed keys, options, kinds and verbs, with their replacement."""


def nearest_hint(name: str, allowed: Iterable[str]) -> str:
    """ "did you mean 'd_ff'?" where a valid name is near, else the list of valid names; REMOVED comes first."""
    if name in REMOVED:
        return REMOVED[name]
    names = [str(item) for item in allowed]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean '{near[0]}'?" if near else f"allowed: {', '.join(sorted(names))}"


def check_one_of(place: str, name: str, allowed: Collection[str]) -> None:
    """Raise a UserError `place: got 'd_fff'; did you mean 'd_ff'?` unless the name is allowed."""
    if name not in allowed:
        raise UserError(f"{place}: got {name!r}; {nearest_hint(name, allowed)}")


def parse(config_class: type[ConfigT], data: Any, where: str = "recipe") -> ConfigT:
    """Parse plain data into a config. Raises UserError `where: path: value: what is allowed` for the first mistake."""
    try:
        json.dumps(data)  # refuses dates, sets, cycles and numbers too long to print
        return config_class.model_validate(data)
    except pydantic.ValidationError as error:
        raise UserError(f"{where}: {_describe(error, data)}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{where}: holds a value that is not plain data ({error})") from None


def _describe(error: pydantic.ValidationError, data: Any = None) -> str:
    details = error.errors(include_url=False)
    first = details[0]
    at, places = _place(first, data), {_place(each, data) for each in details if data is not None}
    more = sum(place[: len(at)] != at[: len(place)] for place in places)  # not parents or children of the first
    context = first.get("ctx", {})
    path = at[:-1] if first["type"] == "missing" else at
    match first["type"]:
        case "unknown_key":
            section, replacement = ".".join(path), context["replacement"]
            remedy = f"; to change the kind, replace the section: '{section}={replacement}'"
            text = f"{'.'.join([*path, context['key']])}: {context['text']}{remedy * bool(path and replacement)}"
        case "missing":
            text = f"{'.'.join(at)}: is required but missing"
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
            text = f"{'.'.join(path) or 'the recipe'}: got {shortened(first.get('input'))}; {allowed}"
    return text + (f" (and {more} more mistake{'s' * (more > 1)})" if more else "")


def _place(mistake: Any, data: Any) -> tuple[str, ...]:
    """Return the config path of a pydantic error; all union branches share one path.

    The path has the keys of the data, without union tags and type names. data: None if unknown.
    """
    is_missing = mistake["type"] == "missing"
    location = mistake["loc"][:-1] if is_missing else mistake["loc"]
    path: list[str] = [str(part) for part in location] if data is None else []
    node = data
    for part in location:
        if isinstance(node, Mapping) and part in node:
            node = node[part]
        elif isinstance(node, Mapping) and str(part) in {str(key) for key in node}:
            node = next(value for key, value in node.items() if str(key) == str(part))
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            node = node[part]
        else:
            continue
        path.append(str(part))
    return (*path, str(mistake["loc"][-1])) if is_missing else tuple(path)


def shortened(value: Any) -> str:
    """Return a value as errors show it."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


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
    """Import an optional dependency. Raises UserError that names the extra which installs it."""
    try:
        return import_module(module)
    except ImportError:
        raise UserError(f"{module} is not installed; run: pip install 'widthwise[{extra}]'") from None
