"""The JSON schema of recipe files, with which editors complete keys and explain them."""

from typing import Any

from pydantic.json_schema import models_json_schema

from widthwise.experiments.discovery.discover import DiscoverConfig
from widthwise.experiments.ladder import LadderConfig
from widthwise.experiments.plan import CompareConfig
from widthwise.experiments.sweep.config import SweepConfig, SweepGroup
from widthwise.recipe.recipe import Recipe

DIALECT = "https://json-schema.org/draft/2020-12/schema"
EXTENDS = {
    "type": "string",
    "description": "Recipe that this one changes: a path from here, or the name of a bundled one.",
}
SECTIONS = {"compare": CompareConfig, "sweep": SweepConfig, "ladder": LadderConfig, "discover": DiscoverConfig}
"""Section of a file that describes several runs -> its config."""
CHANGES = "Changes"


def recipe_schema() -> dict[str, Any]:
    """The schema, components of installed plugins included.

    No key is required, as a recipe may extend another one. Whether sizes fit together only the program knows.
    """
    _, found = models_json_schema([(config, "validation") for config in (Recipe, *SECTIONS.values())])
    definitions = _loosened(found["$defs"])
    recipe = definitions.pop(Recipe.__name__)
    for config in (*SECTIONS.values(), SweepGroup):
        definitions[config.__name__] = _with_changes(definitions[config.__name__])
    sections = {name: {"$ref": f"#/$defs/{config.__name__}"} for name, config in SECTIONS.items()}
    return {
        "$schema": DIALECT,
        **recipe,
        "title": "A recipe of widthwise",
        "properties": {"extends": EXTENDS, **recipe["properties"], **sections},
        "$defs": {**definitions, CHANGES: {**recipe, "description": "Changes to the recipe."}},
    }


def _loosened(schema: Any) -> Any:
    """Without required keys and numbers of them: a `kind` may be left out too, so that several alternatives may fit."""
    if isinstance(schema, list):
        return [_loosened(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    names = {"oneOf": "anyOf"}
    left_out = ("discriminator", "required", "minProperties") if schema.keys() & {"type", "oneOf"} else ()
    return {names.get(key, key): _loosened(value) for key, value in schema.items() if key not in left_out}


def _with_changes(schema: Any) -> Any:
    """Every free mapping of an experiment's section changes the recipe."""
    if isinstance(schema, list):
        return [_with_changes(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "object" and schema.get("additionalProperties") is True:
        return {"$ref": f"#/$defs/{CHANGES}"}
    return {key: _with_changes(value) for key, value in schema.items()}
