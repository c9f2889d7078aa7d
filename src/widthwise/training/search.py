"""Searching a shape: from a base recipe and a space to the recipes of what was found."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from widthwise.config_io import UserError, dump_yaml, read_recipe, read_text
from widthwise.files import write_atomic
from widthwise.model.ffn.hourglass import HourglassTemplate
from widthwise.shape.kinds import UniformShape
from widthwise.shape.search import SearchResult, search
from widthwise.shape.search_space import SearchSpace
from widthwise.shape.template import ModelTemplate
from widthwise.training.config import parse_recipe


def search_recipe(base: Path, overrides: Sequence[str], space: SearchSpace) -> SearchResult:
    """The search around a recipe's model, at its seq_len. Raises UserError."""
    recipe = parse_recipe(read_recipe(base, overrides), str(base))
    if not isinstance(recipe.model, ModelTemplate):
        raise UserError(f"{base}: a search needs a base recipe with d_model and n_layers, not one with explicit layers")
    return search(recipe.model, recipe.seq_len, space)


def write_search(
    base: Path, overrides: Sequence[str], result: SearchResult, summary: dict[str, Any], folder: Path
) -> list[Path]:
    """Writes the summary as search.json and, in recipes/, the base with its overrides and recipes that extend it.

    There is one for each candidate of the summary. Returns the paths of the recipes, the base first. Raises UserError
    where a file exists with other content; the same again is no harm.
    """
    recipes = folder / "recipes"
    contents = {recipes / f"{base.stem}.yaml": dump_yaml(read_recipe(base, overrides))}
    for row in summary["candidates"]:
        data = {"extends": f"{base.stem}.yaml", "model": _changes(result, row)}
        contents[recipes / f"{row['name']}.yaml"] = dump_yaml(data)
    files = {folder / "search.json": json.dumps(summary, indent=2) + "\n", **contents}
    for path, text in files.items():
        if path.exists() and read_text(path) != text:
            raise UserError(f"{path}: exists already with other content; choose another --out")
    for path, text in files.items():
        write_atomic(path, text)
    return list(contents)


def _changes(result: SearchResult, row: dict[str, Any]) -> dict[str, Any]:
    """What the model section of a candidate's recipe changes."""
    base, heads = result.base, result.heads
    # d_hidden may not stand beside a ratio that the base gives; another ratio takes its place.
    has_ratio = isinstance(base.ffn, HourglassTemplate) and base.ffn.model_fields_set & {"ratio", "multiple_of"}
    width = {"ratio": row["ratio"], "multiple_of": 1} if has_ratio else {"d_hidden": row["d_hidden"]}
    changes: dict[str, Any] = {"d_model": row["d_model"], "n_layers": row["n_layers"]}
    if heads != base.attention:
        changes["attention"] = {"n_heads": heads.n_heads, "head_dim": heads.head_dim}
    if not isinstance(base.shape, UniformShape):
        changes["shape"] = {"kind": "uniform"}
    return {**changes, "ffn": {"kind": "hourglass", "n_blocks": row["n_blocks"], **width}}
