"""Components with a `kind`, of the package and of plugins, and checks of the fields that growth must keep."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache, reduce
from importlib.metadata import entry_points
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, PydanticKnownError, core_schema

from widthwise.config_io import Config, nearest_hint, to_data
from widthwise.mistakes import UserError

C = TypeVar("C", bound=Config)
T = TypeVar("T", bound=Config)

ENTRY_POINTS = "widthwise.plugins"
"""Group under which an installed package names the modules that register its components when they are imported."""


class ConfigOfKind(Config):
    """Base of configs that are selected by `kind`, which each class declares as a Literal."""

    if TYPE_CHECKING:
        kind: Any


class Kinds(Generic[C]):
    """Registry of the subclasses of Base that a field of type `Annotated[Base, kinds]` accepts.

    It is as strict as pydantic's union with a discriminator, and open: a class added later is valid in configs that
    were declared before, and part of their JSON schema. Plugins are loaded to look for an unknown kind.
    """

    def __init__(self, base: type[C]):
        self._base = base
        self._classes: dict[str, type[C]] = {}

    def __iter__(self) -> Iterator[type[C]]:
        """Iterate over the registered classes."""
        return iter(tuple(self._classes.values()))

    def add(self, member: type[C]) -> None:
        """Register a class. Raise UserError if `check` does."""
        self.check(member)
        self._classes[kind_of(member)] = member

    def check(self, member: type[C]) -> None:
        """Raise UserError for a class that has another base, no kind, or a kind that is taken.

        A class that is declared again, for example when a notebook cell reruns, may take its kind again.
        """
        if not issubclass(member, self._base):
            raise UserError(f"{member.__name__}: must be a {self._base.__name__}")
        kind = kind_of(member)
        registered = self._classes.get(kind, member)
        if (registered.__module__, registered.__qualname__) != (member.__module__, member.__qualname__):
            raise UserError(f"{member.__name__}: kind {kind!r} is already registered by {registered.__module__}")

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validated)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        load_plugins()
        union: Any = Annotated[reduce(or_, self._classes.values()), Field(discriminator="kind")]
        return handler(TypeAdapter(union).core_schema)

    def _validated(self, data: Any) -> C:
        if type(data) in self._classes.values():
            return data
        if isinstance(data, self._base):
            raise self._unknown(kind_of(type(data)))
        if not isinstance(data, Mapping):
            raise PydanticKnownError("model_attributes_type")
        if "kind" not in data:
            raise PydanticKnownError("union_tag_not_found", {"discriminator": "'kind'"})
        kind = data["kind"]
        if not isinstance(kind, str) or kind not in self._classes:
            load_plugins()
        if not isinstance(kind, str) or kind not in self._classes:
            raise self._unknown(kind)
        return self._classes[kind].model_validate(data)

    def _unknown(self, kind: Any) -> PydanticCustomError:
        context = {"kind": repr(kind), "hint": nearest_hint(str(kind), self._classes)}
        return PydanticCustomError("unknown_kind", "got {kind}, which is not registered; {hint}", context)


class Component(Generic[C, T]):
    """A component with several kinds, each of which has a config for one layer or model, and a template."""

    def __init__(self, config: type[C], template: type[T]):
        self.configs = Kinds(config)
        self.templates = Kinds(template)

    def register(self, config: type[C], template: type[T]) -> None:
        """Register a config and its template. Raise UserError if their kinds differ or are taken."""
        if kind_of(config) != kind_of(template):
            kinds = kind_of(config), kind_of(template)
            raise UserError(f"{config.__name__}: is of kind {kinds[0]!r}, and {template.__name__} of {kinds[1]!r}")
        self.templates.check(template)
        self.configs.add(config)
        self.templates.add(template)


def kind_of(member: type[Config]) -> str:
    """Return the kind of a class. Raise UserError if it has none."""
    field = member.model_fields.get("kind")
    if field is None or not isinstance(field.default, str):
        raise UserError(f'{member.__name__}.kind: must be declared, as kind: Literal["gated"] = "gated"')
    return field.default


@cache
def load_plugins() -> None:
    """Import once the modules that installed packages list under `ENTRY_POINTS`. Raise UserError if one fails."""
    for point in entry_points(group=ENTRY_POINTS):
        try:
            point.load()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise UserError(f"plugin {point.name} ({point.value}): cannot be loaded ({reason})") from None


def must_agree(name: str, old: object, new: object, why: str = ", which would change the function") -> None:
    """Raise UserError if growth changes a value that it must keep. name: path of the value; why: end of the message."""
    if old != new:
        was, got = (repr(to_data(value) if isinstance(value, Config) else value) for value in (old, new))
        raise UserError(f"{name}: got {got} where it was {was}{why}")


def all_must_agree(names: Iterable[str], old: Config, new: Config) -> None:
    """Apply `must_agree` to fields of two configs."""
    for name in names:
        must_agree(name, getattr(old, name), getattr(new, name))


def must_stay(names: Iterable[str], old: Config, new: Config) -> None:
    """Apply `must_agree` to fields that growth could change only by a conversion, which does not exist."""
    for name in names:
        must_agree(name, getattr(old, name), getattr(new, name), "; growth has no conversion for it")


def may_be_added(name: str, old: object, new: object) -> None:
    """Raise UserError if growth removes a part. Growth may add a part, because it starts without effect."""
    if old and not new:
        must_agree(name, old, new, "; growth takes nothing away")
