"""Recipe files that describe several runs: reading all runs or one, and the JSON schema of recipe files."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic.json_schema import models_json_schema

from widthwise.config_io import check_one_of
from widthwise.experiments.compare import CompareConfig, read_plan
from widthwise.experiments.matching import check_trainable
from widthwise.experiments.plan import Plan
from widthwise.experiments.sweep import read_sweep
from widthwise.experiments.sweep_section import SweepConfig, SweepGroup
from widthwise.mistakes import UserError
from widthwise.recipe.recipe import SEVERAL_RUNS, Recipe, describes_several, load_recipe
from widthwise.yaml_io import read_recipe

EXTENDS = {
    "type": "string",
    "description": "Recipe that this one changes: a path relative to this file, or the name of a bundled recipe.",
}
SECTIONS = {"compare": CompareConfig, "sweep": SweepConfig}
"""Section of a file that describes several runs -> its config."""
CHANGES = "Changes"
"""Name, in the schema, of the definition of changes to the recipe."""


def read_all(path: Path, overrides: Sequence[str] = (), only: str | None = None) -> Plan:
    """Return the experiment of a recipe of several runs. only: as in `read_plan`. Raises UserError."""
    if "compare" in read_recipe(path, overrides):
        return read_plan(path, overrides, only=only)
    return read_sweep(path, overrides)


def read_one(path: Path, overrides: Sequence[str] = (), variant: str | None = None) -> Recipe:
    """Return the recipe of one run: a plain recipe, or a variant or point of a recipe that describes several runs.

    variant: its name; None for a plain recipe. A variant is adjusted as in its experiment, and has the seed of the
    recipe. Raises UserError.
    """
    if variant is None:
        return load_recipe(path, overrides)
    if not describes_several(read_recipe(path, overrides)):
        sections = ", ".join(SEVERAL_RUNS)
        raise UserError(f"--variant: got {variant!r}, but {path} describes one run; it has none of {sections}")
    plan = read_all(path, overrides, variant)
    check_one_of("--variant", variant, plan.recipes)
    check_trainable(plan.points[variant])
    return plan.recipes[variant]


def recipe_schema() -> dict[str, Any]:
    """Return the JSON schema of recipes, including components of installed plugins.

    No key is required, because a recipe may extend another one. The schema does not check that sizes are compatible.
    """
    _, schemas = models_json_schema([(config, "validation") for config in (Recipe, *SECTIONS.values())])
    definitions = _changed(schemas["$defs"], _loosened)
    recipe = definitions.pop(Recipe.__name__)
    for config in (*SECTIONS.values(), SweepGroup):
        definitions[config.__name__] = _changed(definitions[config.__name__], _with_changes)
    sections = {name: {"$ref": f"#/$defs/{config.__name__}"} for name, config in SECTIONS.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **recipe,
        "title": "A recipe of widthwise",
        "properties": {"extends": EXTENDS, **recipe["properties"], **sections},
        "$defs": {**definitions, CHANGES: {**recipe, "description": "Changes to the recipe."}},
    }


def _changed(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return a schema with a change applied to each of its mappings, innermost first."""
    if isinstance(schema, list):
        return [_changed(item, change) for item in schema]
    if isinstance(schema, dict):
        return change({key: _changed(value, change) for key, value in schema.items()})
    return schema


def _loosened(schema: dict[str, Any]) -> dict[str, Any]:
    """Make all keys optional, including `kind`, so that several alternatives may match."""
    dropped = ("discriminator", "required", "minProperties") if schema.keys() & {"type", "oneOf"} else ()
    return {"anyOf" if key == "oneOf" else key: value for key, value in schema.items() if key not in dropped}


def _with_changes(schema: dict[str, Any]) -> dict[str, Any]:
    """Replace a mapping without fixed keys, in the section of an experiment, by changes to the recipe."""
    is_free = schema.get("type") == "object" and schema.get("additionalProperties") is True
    return {"$ref": f"#/$defs/{CHANGES}"} if is_free else schema
