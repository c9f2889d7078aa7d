"""Searching a shape: from a base recipe and a space to the recipes of what was found."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from widthwise.bundled import recipe_name
from widthwise.config_io import UserError
from widthwise.files import read_text, write_atomic
from widthwise.model.attention import in_groups
from widthwise.recipe.recipe import parse_recipe
from widthwise.shape.search import SearchResult, search
from widthwise.shape.search_space import SearchSpace
from widthwise.shape.template import ModelTemplate
from widthwise.yaml_io import dump_yaml, read_recipe


def search_recipe(base: Path, overrides: Sequence[str], space: SearchSpace) -> SearchResult:
    """The search around a recipe's model, at its seq_len. Raises UserError."""
    recipe = parse_recipe(read_recipe(base, overrides), str(base))
    if not isinstance(recipe.model, ModelTemplate):
        raise UserError(f"{base}: a search needs a base recipe with d_model and n_layers, not one with explicit layers")
    return search(recipe.model, recipe.seq_len, space)


def write_search(base: Path, overrides: Sequence[str], summary: dict[str, Any], folder: Path) -> list[Path]:
    """Writes the summary as search.json and, in recipes/, the base with its overrides and recipes that extend it.

    There is one for each candidate of the summary. Returns the paths of the recipes, the base first. Raises UserError
    where a file exists with other content; the same again is no harm.
    """
    recipes = folder / "recipes"
    base_data = read_recipe(base, overrides)
    if "attention" in base_data["model"]:
        base_data["model"]["attention"] = in_groups(base_data["model"]["attention"])
    contents = {recipes / f"{recipe_name(base)}.yaml": dump_yaml(base_data)}
    # An hourglass has no width that tokens choose.
    off = {key: None for key in ("width_budget", "nested") if base_data.get("train", {}).get(key) is not None}
    for row in summary["candidates"]:
        data = {"extends": f"{recipe_name(base)}.yaml", "model": _changes(row), **({"train": off} if off else {})}
        contents[recipes / f"{row['name']}.yaml"] = dump_yaml(data)
    files = {folder / "search.json": json.dumps(summary, indent=2) + "\n", **contents}
    for path, text in files.items():
        if path.exists() and read_text(path) != text:
            raise UserError(f"{path}: exists already with other content; choose another --out")
    for path, text in files.items():
        write_atomic(path, text)
    return list(contents)


def _heads(row: dict[str, Any]) -> dict[str, Any]:
    """The attention of a candidate, whatever the base's rule."""
    width = None if row["d_attention"] == row["d_model"] else row["d_attention"]
    return {"n_heads": row["n_heads"], "head_dim": None, "ratio": None, "d_attention": width}


def _changes(row: dict[str, Any]) -> dict[str, Any]:
    """The model section of a candidate's recipe; null where the base may have a rule for a size that is given here."""
    width = {"d_hidden": row["d_hidden"], "ratio": None, "multiple_of": 1}
    return {
        "d_model": row["d_model"],
        "n_layers": row["n_layers"],
        "shape": {"kind": "uniform"},
        "attention": _heads(row),
        "ffn": {"kind": "hourglass", "n_blocks": row["n_blocks"], **width},
    }
