"""Options of verbs: one for each field of a config class, and options that many verbs share."""

import inspect
import os
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from enum import Enum
from functools import wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from typer.core import TyperCommand, TyperOption
from typer.models import OptionInfo

from widthwise.config_io import Config, ConfigT, attribute_docs, mistakes_at
from widthwise.mistakes import UserError

LONGEST_SPAN = 10_000
"""Most numbers of a range such as 8..16."""

RecipeArgument = Annotated[Path, typer.Argument(help="Recipe, such as configs/x_200m.yaml.")]
RunArgument = Annotated[Path, typer.Argument(help="Run directory, such as runs/x_200m.")]
Changes = Annotated[list[str] | None, typer.Argument(help="Changes to the recipe, such as train.steps=2000.")]
RunsArgument = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs or Hugging Face folders.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
VariantOption = Annotated[str | None, typer.Option(help="Variant or point of a recipe's compare or sweep section.")]
StepOption = Annotated[
    int | None, typer.Option(min=0, help="Step of the checkpoint; default: the newest undamaged one.")
]
Seeds = Annotated[tuple[int, ...], typer.Option("--seed")]
"""Type of a field for seeds, which becomes the repeated option --seed."""


def with_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Return a typer command with an option for each field of the verb's config parameters.

    The field determines name, type, default and allowed values of the option, and its docstring is the help. A
    `typer.Option` in the annotation overrides them. A tuple field of str, Path or Enum, or with a name in its
    `typer.Option`, becomes a repeated option named in the singular. Other tuples are written as lists such as `2,4` or
    `8..16`, or as limits such as `0.3..0.8`. `Annotated[SomeConfig, "Title"]` groups the options under a title.
    """
    parameters = []
    configs = {}
    for parameter in inspect.signature(verb).parameters.values():
        # The arguments of Annotated[SomeConfig, "Title"], or SomeConfig alone.
        config, *title = get_args(parameter.annotation) or [parameter.annotation]
        if isinstance(config, type) and issubclass(config, Config):
            configs[parameter.name] = config
            parameters += [_parameter(*field, *title) for field in config.model_fields.items()]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(verb)
    def command(**arguments: Any) -> None:
        for name, config in configs.items():
            arguments[name] = _read(config, {field: arguments.pop(field) for field in config.model_fields})
        verb(**arguments)

    vars(command).update(__signature__=inspect.Signature(parameters), configs=[*configs.values()])
    return command


class Command(TyperCommand):
    """A command that reads the docstrings of fields only when it prints its help, because this is slow."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.describe_options()
        super().format_help(ctx, formatter)

    def describe_options(self) -> None:
        """Set the help of each option to the docstring of its field."""
        for config in vars(self.callback).get("configs", ()):
            docs = attribute_docs(config)
            for param in self.params:
                if isinstance(param, TyperOption) and param.name in docs:
                    param.help = docs[param.name]


def is_change(argument: str) -> bool:
    """Return True for a change to a recipe, `a.b=c`. An existing path is not a change, even with a = in its name."""
    return "=" in argument and not os.path.exists(argument)


def _whole_numbers(option: str, text: str) -> list[int]:
    """Parse "2,4" or "8..12,16" (both ends included) into numbers. Raises UserError for other texts and long ranges."""
    numbers: list[int] = []
    try:
        for part in text.split(","):
            first, dots, last = part.partition("..")
            start = int(first)
            end = int(last) if dots else start
            span = range(start, end + 1)
            if not 0 < span.stop - span.start <= LONGEST_SPAN:
                raise ValueError
            numbers += span
    except ValueError:
        raise UserError(f"{option}: got {text!r}; expected whole numbers such as 2,4 or 8..16") from None
    return numbers


def _bare_type(annotation: Any) -> Any:
    """Return a type without None and without the bounds of Annotated. A union of other types is returned as it is."""
    if get_origin(annotation) is Annotated:
        return _bare_type(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        types = [member for member in get_args(annotation) if member is not NoneType]
        if len(types) == 1:
            return _bare_type(types[0])
    return annotation


def _option(name: str, info: FieldInfo) -> tuple[OptionInfo, str, bool]:
    """Return the option of a field, its name, such as `--bottleneck-layer`, and True if it is repeated."""
    kind = _bare_type(info.annotation)
    option = copy(next((data for data in info.metadata if isinstance(data, OptionInfo)), None) or typer.Option())
    # typer stores the first name as the default.
    names = [name for name in (option.default, *(option.param_decls or ())) if isinstance(name, str)]
    item = get_args(kind)[0] if get_origin(kind) is tuple else None
    is_text = item in (str, Path) or (isinstance(item, type) and issubclass(item, Enum))
    is_repeated = is_text or (item is not None and bool(names))
    if not names:
        singular = name.removesuffix("s") if is_repeated else name
        names = [f"--{singular.replace('_', '-')}"]
    option.default = ...
    option.param_decls = names
    return option, names[0], is_repeated


def _parameter(name: str, info: FieldInfo, title: str | None = None) -> inspect.Parameter:
    """Return the parameter from which typer makes the option of a field."""
    kind = _bare_type(info.annotation)
    option, _, is_repeated = _option(name, info)
    option.rich_help_panel = title
    default = inspect.Parameter.empty if info.is_required() else info.default
    if is_repeated:
        kind = list[get_args(kind)[0]]
        default = default or None
    elif kind not in (bool, str, Path):
        values = get_args(kind)
        option.metavar = {int: "<int>", float: "<float>"}.get(kind, "<value>")
        if get_origin(kind) is Literal:
            option.metavar = f"<{'|'.join(map(str, values))}>"
            option.autocompletion = lambda: values
        elif get_origin(kind) is tuple:
            option.metavar = "<list>" if ... in values else "<low..high>"
        kind = str
        if isinstance(default, tuple):
            default = ",".join(map(str, default)) or None
    annotation = Annotated[kind if kind is bool else kind | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _read(config: type[ConfigT], values: dict[str, Any]) -> ConfigT:
    """Return a config with the values of options. Raises UserError `--option: ...`."""
    fields = config.model_fields
    options = {name: _option(name, info)[1] for name, info in fields.items()}
    data = dict[str, Any]()
    for name, value in values.items():
        if value is not None:
            data[name] = _data(_bare_type(fields[name].annotation), value, options[name])
    try:
        with mistakes_at("options"):
            return config.model_validate(data)
    except UserError as error:
        path, colon, rest = str(error).removeprefix("options.").partition(": ")
        raise UserError(f"{options.get(path.partition('.')[0], path)}{colon}{rest}") from None


def _data(kind: Any, value: Any, option: str) -> Any:
    """Return the value of an option as plain data for a field of type `kind`. option: its name, for errors."""
    if not isinstance(value, str) or kind is str or get_origin(kind) is Literal:
        return value
    if get_origin(kind) is not tuple:
        return _parsed(value)
    kinds = get_args(kind)
    if kinds[1:] == (...,):
        item = get_args(kinds[0])[0] if get_origin(kinds[0]) is Annotated else kinds[0]
        if item is int:
            return _whole_numbers(option, value)
        return [_parsed(item.strip()) for item in value.split(",")]
    limits = value.split("..")
    if len(limits) < len(kinds):
        raise UserError(f"{option}: got {value!r}; expected two numbers such as 0.4..0.8")
    return [_parsed(limit) for limit in limits]


def _parsed(text: str) -> float | str | None:
    """Parse "2" as 2, "0.5" as 0.5, "30M" as 3e7 and "null" as None; return other texts unchanged."""
    for number_type in (int, float):
        with suppress(ValueError):
            return number_type(text)
    from widthwise.recipe.design import parse_quantity

    if text == "null":
        return None
    with suppress(UserError):
        return parse_quantity(text)
    return text
