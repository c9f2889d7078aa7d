"""The bundled recipes, and which of them differ in numbers alone."""

from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from widthwise.yaml_io import bundled_recipes, merge, read_recipe

RECIPES = list(bundled_recipes().values())
T = TypeVar("T")


def recipe_data(path: Path) -> list[dict]:
    """The recipe of the file, or of each of its variants, of each group of a sweep, and on each rung; not if null."""
    data = read_recipe(path)
    variants = data.pop("compare", {"variants": {"": {}}})["variants"]
    sweep = data.pop("sweep", {})
    rungs = sweep.get("rungs", {"": {}}).values()
    groups = sweep.get("groups", {}).values()
    points = [merge(rung, group.get("change", {})) for rung in rungs for group in groups if group is not None]
    changes = (*(change for change in variants.values() if change is not None), *points)
    return [merge(data, change) for change in changes]


def one_of_each_kind(found: Iterable[T], data: Callable[[T], Any]) -> list[T]:
    """Without those whose data differ only in numbers from those of one before them."""
    kinds: dict[Hashable, T] = {}
    for each in found:
        kinds.setdefault(_without_numbers(data(each)), each)
    return list(kinds.values())


def _without_numbers(data: Any) -> Hashable:
    if isinstance(data, dict):
        return frozenset((0 if isinstance(key, int) else key, _without_numbers(value)) for key, value in data.items())
    if isinstance(data, (list, tuple)):
        return frozenset(map(_without_numbers, data))
    return data if isinstance(data, (str, bool)) or data is None else 0
