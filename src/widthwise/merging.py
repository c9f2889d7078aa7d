"""Laying one piece of a recipe over another."""

from collections.abc import Mapping
from typing import Any

SOURCES = ("corpus", "path", "mixture")
"""Keys that say where data come from; a section of data has one of them."""
OF_A_SOURCE = ("tokenizer", "held_out", "verify")
"""Keys that say more of the source that their section names."""


def merge(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """`change` laid over `base`, recursively.

    Mappings are merged key by key; lists and plain values replace. A mapping of another `kind` replaces the old one
    whole, because the other kind's keys mean nothing to it. A mapping that takes data from elsewhere, as from a path in
    the place of a corpus, replaces what the old one says of its source.
    """
    replaced = replaced_keys(base, change)
    merged = {key: value for key, value in base.items() if key not in replaced}
    for key, value in change.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and not _kinds_differ(old, value):
            merged[key] = merge(old, value)
        else:
            merged[key] = value
    return merged


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes that `merge` lays over `old` to make it `new`."""
    replaced = replaced_keys(old, new)
    change: dict[str, Any] = {}
    for key, value in new.items():
        before = old.get(key)
        if key in replaced or key not in old:
            change[key] = value
        elif before == value:
            continue
        elif isinstance(before, Mapping) and isinstance(value, Mapping) and not _kinds_differ(before, value):
            change[key] = difference(before, value)
        else:
            change[key] = value
    return change


def replaced_keys(old: Mapping[str, Any], change: Mapping[str, Any]) -> set[str]:
    """The keys that a change takes away from a section: those of its source of data, if it names another sort.

    A section that names no source has the default corpus.
    """
    named = {key for key in SOURCES if change.get(key) is not None}
    before = {key for key in SOURCES if old.get(key) is not None} or {"corpus"}
    return {*SOURCES, *OF_A_SOURCE} if named and not named & before else set()


def _kinds_differ(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return "kind" in old and "kind" in new and old["kind"] != new["kind"]
