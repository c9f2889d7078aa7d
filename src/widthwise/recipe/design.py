"""New recipes: a shape designed or searched from a base recipe, and bundled recipes to start from."""

import math
import os
import re
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from widthwise.config_io import parse
from widthwise.files import read_text, write_atomic
from widthwise.mistakes import UserError
from widthwise.model.attention import with_kv_group_size
from widthwise.model.config import cost_summary
from widthwise.recipe.inspection import inspect_recipe
from widthwise.recipe.recipe import Recipe, parse_recipe
from widthwise.records.quantities import MODEL_COSTS
from widthwise.records.record import SealedFile
from widthwise.shape.adjusting import nearest_size
from widthwise.shape.schedule import SCHEDULES
from widthwise.shape.search import SearchResult, search
from widthwise.shape.search_space import SearchSpace, ShapeRequest
from widthwise.shape.template import QUANTITIES, ModelTemplate
from widthwise.yaml_io import apply_overrides, difference, dump_yaml, merge, read_recipe, recipe_name

WIDTH_PER_LAYER = 40
HEAD_DIM = 64
"""As in the paper's recipes for hardware. d_model is a multiple of it."""
PARAMS_PER_TOKEN_OF_STEP = 480
WARMUP = 0.08
FAMILY_BASE: dict[str, Any] = {
    "seq_len": 4096,
    "data": {"corpus": "python-stdlib", "tokenizer": "bpe-32768"},
    "optimizer": {"kind": "adamw", "lr": 0.01, "betas": [0.9, 0.95], "eps": 1e-10, "weight_decay": 0.1},
    "schedule": {"kind": "power"},
    "train": {"precision": "bf16", "compile": True},
    "model": {
        "vocab_size": 32768,
        "attention": {"head_dim": HEAD_DIM, "scale": "1/head_dim"},
        "ffn": {"kind": "swiglu", "ratio": 4},
        "residual": {"kind": "plain", "multiplier": 0.22},
        "embedding_multiplier": 12,
        "logit_multiplier": 0.125,
        "init": {"std": 0.1, "width_multiplier": 8},
    },
}
SUFFIXES = {"k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}


def shape_section(request: ShapeRequest) -> dict[str, Any]:
    """Return the `model.shape` section of the new recipe. Raise UserError for an option that the kind does not have."""
    schedule = SCHEDULES.get(request.kind)
    section: dict[str, Any] = {"kind": request.kind}
    options = (
        ("--turn-layer", request.turn_layer, schedule and schedule.layer_key),
        ("--turn-width", request.turn_width, schedule and schedule.ratio_key),
        ("--quantum", request.quantum, "quantum"),
    )
    for option, value, key in options:
        if value is None:
            continue
        if key is not None:
            section[key] = value
        elif request.kind in (*SCHEDULES, "uniform"):  # an unknown kind is refused later
            raise UserError(f"{option}: got {value}; shape kind '{request.kind}' has none")
    if request.kind != "uniform":
        section |= {"match": request.match, "rounding": request.rounding}
    return section


def design_recipe(
    base: Path | str, request: ShapeRequest, overrides: Sequence[str] = (), out: Path | str | None = None
) -> tuple[str, dict[str, Any]]:
    """Return the new recipe as YAML, and the inspection of its model next to the uniform one.

    The recipe extends the base. out: file to write it to. With a budget, the inspection has the relative distance from
    it. Raises UserError with possible values if the request cannot be met.
    """
    base = Path(base)
    out = None if out is None else Path(out)
    if out is not None and out.exists():
        raise UserError(f"{out}: exists already; choose another --out")
    base_data = read_recipe(base, overrides)
    solved = solved_change(parse_recipe(base_data, str(base)), request)
    recipe = parse(Recipe, merge(base_data, solved), "design")
    summary = inspect_recipe(recipe) | budget_met(recipe, request)
    folder = Path.cwd() if out is None else out.resolve().parent
    parent = os.path.relpath(base.resolve(), folder) if base.exists() else base.name
    text = dump_yaml({"extends": parent, **merge(difference(read_recipe(base), base_data), solved)})
    if out is not None:
        write_atomic(out, text)
    return text, summary


def solved_change(base: Recipe, request: ShapeRequest) -> dict[str, Any]:
    """Return the changes that a request makes to a recipe, as data. Raise UserError if the request cannot be met."""
    section: dict[str, Any] = {"shape": shape_section(request)}
    if request.budget is not None:
        section["d_model"] = fitting_d_model(base, request)
    return {"model": section}


def budget_met(recipe: Recipe, request: ShapeRequest) -> dict[str, Any]:
    """Return a dict with the entry `budget` for the inspection of a designed model; {} if there is no budget."""
    if request.budget is None:
        return {}
    target = parse_quantity(request.budget)
    cost = MODEL_COSTS[request.match].of_cost(cost_summary(recipe.final_model, recipe.seq_len))
    return {"budget": {"match": request.match, "asked": target, "miss": cost / target - 1}}


def parse_quantity(text: str, option: str = "--budget") -> float:
    """Return a number such as 3e7 for "30M". Raise UserError if it is not a positive number."""
    number = text[:-1] if text[-1:] in SUFFIXES else text
    try:
        value = float(number) * SUFFIXES.get(text[-1:], 1.0)
    except ValueError:
        value = 0.0
    if not value > 0 or value == float("inf"):
        raise UserError(f"{option}: got {text!r}; expected a positive number such as 30M or 2.5G")
    return value


def fitting_d_model(recipe: Recipe, request: ShapeRequest) -> int:
    """Return the uniform d_model whose matched quantity, including embedding and head, is nearest to the budget.

    Raises UserError for a budget that no d_model meets.
    """
    assert request.budget is not None
    template = recipe.model
    if not isinstance(template, ModelTemplate):
        raise UserError("--budget: needs a base recipe with d_model and n_layers, not one with explicit layers")
    if request.match not in QUANTITIES:
        raise UserError(f"--match: got {request.match!r}; allowed: {', '.join(QUANTITIES)}")
    budget = parse_quantity(request.budget)
    quantum = math.lcm(request.quantum or template.attention.quantum, template.residual.d_model_quantum)

    def miss(n_quanta: int) -> float:
        sized = template.uniform().model_copy(update={"d_model": n_quanta * quantum})
        return MODEL_COSTS[request.match].of_cost(cost_summary(sized.resolve(recipe.seq_len), recipe.seq_len)) - budget

    if (excess := miss(1)) > 0:
        has = f"{quantum} channels wide the model already has {budget + excess:.4g}"
        raise UserError(f"--budget: {request.budget} is too small; {has}")
    return nearest_size(miss, 1) * quantum


def search_recipe(base: Path, overrides: Sequence[str], space: SearchSpace) -> SearchResult:
    """Return the search around a recipe's model, at its seq_len. Raise UserError for explicit layers."""
    recipe = parse_recipe(read_recipe(base, overrides), str(base))
    if not isinstance(recipe.model, ModelTemplate):
        raise UserError(f"{base}: a search needs a base recipe with d_model and n_layers, not one with explicit layers")
    return search(recipe.model, recipe.seq_len, space)


def write_search(base: Path, overrides: Sequence[str], summary: dict[str, Any], folder: Path) -> list[Path]:
    """Write the summary as search.json and, in recipes/, the base with its overrides and a recipe for each candidate.

    Returns the paths of the recipes, the base first. Raises UserError if a file exists with other content.
    """
    recipes = folder / "recipes"
    base_data = read_recipe(base, overrides)
    if "attention" in base_data["model"]:
        base_data["model"]["attention"] = with_kv_group_size(base_data["model"]["attention"])
    contents = {recipes / f"{recipe_name(base)}.yaml": dump_yaml(base_data)}
    # Remove options for dynamic widths, which an hourglass does not have.
    off = {key: None for key in ("width_budget", "nested") if base_data.get("train", {}).get(key) is not None}
    for row in summary["candidates"]:
        data = {"extends": f"{recipe_name(base)}.yaml", "model": _changes(row)}
        if off:
            data["train"] = off
        contents[recipes / f"{row['name']}.yaml"] = dump_yaml(data)
    files = {folder / "search.json": SealedFile.content(summary), **contents}
    for path, text in files.items():
        if path.exists() and read_text(path) != text:
            raise UserError(f"{path}: exists already with other content; choose another --out")
    for path, text in files.items():
        write_atomic(path, text)
    return list(contents)


def _changes(row: dict[str, Any]) -> dict[str, Any]:
    """Return the model section of a candidate's recipe. null removes a rule of the base for a size that is set here."""
    d_attention = None if row["d_attention"] == row["d_model"] else row["d_attention"]
    sizes = {"d_hidden": row["d_hidden"], "ratio": None, "multiple_of": 1}
    return {
        "d_model": row["d_model"],
        "n_layers": row["n_layers"],
        "shape": {"kind": "uniform"},
        "attention": {"n_heads": row["n_heads"], "head_dim": None, "ratio": None, "d_attention": d_attention},
        "ffn": {"kind": "hourglass", "n_blocks": row["n_blocks"], **sizes},
    }


class Family:
    """Models of all sizes with the recipe of the variable-width paper (arXiv:2606.18246) and some changes.

    The paper's four sizes, 200M to 2B, have 40 coordinates of d_model per layer, the same multipliers, warm-up for 8%
    of the steps, and a power of two of tokens per step, about one token per 480 parameters. `size` counts heads of the
    uniform model.
    """

    def __init__(self, changes: Sequence[str], shape: dict[str, Any], n_devices: int):
        """changes: a.b=c, as on the command line; shape: the `model.shape` section. Raises UserError."""
        self._changes = changes
        self._shape = shape
        self._n_devices = n_devices
        self.has_data = any(re.match(r"data(\.(corpus|path|mixture))?=", change) for change in changes)
        """True if the changes name the data."""
        for change in changes:
            if change.split("=")[0] in ("model.d_model", "model.n_layers", "train.steps"):
                raise UserError(f"{change}: a plan without a recipe proposes this value; remove it, or give a recipe")
        parse(Recipe, self._data(1, shape, n_tokens=0, batch_size=n_devices), "proposal")

    def uniform(self, size: int) -> Recipe:
        """Return the recipe of the uniform model, for one step."""
        return parse(Recipe, self._data(size, {"kind": "uniform"}, n_tokens=0, batch_size=self._n_devices), "family")

    def recipe(self, size: int, n_tokens: float, train: dict[str, Any]) -> tuple[Recipe, dict[str, Any]]:
        """Return the recipe of the shaped model for n_tokens, and its data. train: changes to that section."""
        uniform = self.uniform(size)
        n_params = uniform.explicit_model.cost().params
        tokens_per_step = 2 ** round(math.log2(n_params / PARAMS_PER_TOKEN_OF_STEP))
        batch_size = self._n_devices * max(1, round(tokens_per_step / uniform.seq_len / self._n_devices))
        data = merge(self._data(size, self._shape, n_tokens, batch_size), {"train": train})
        return parse(Recipe, data, "proposal"), data

    def _data(self, size: int, shape: dict[str, Any], n_tokens: float, batch_size: int) -> dict[str, Any]:
        d_model = HEAD_DIM * size
        sizes = {"d_model": d_model, "n_layers": max(1, round(d_model / WIDTH_PER_LAYER)), "shape": shape}
        data = deepcopy(merge(FAMILY_BASE, {"model": sizes, "train": {"steps": 1, "batch_size": batch_size}}))
        apply_overrides(data, self._changes)
        n_steps = max(1, round(n_tokens / data["train"]["batch_size"] / data["seq_len"]))
        return merge(data, {"train": {"steps": n_steps}, "schedule": {"warmup_steps": int(WARMUP * n_steps)}})
