"""The numbers of an item at the paper's size: nothing is trained, everything is counted or fitted to printed points."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import pydantic

from widthwise.bundled import papers_folder, recipe_path
from widthwise.config_io import Config
from widthwise.experiments.papers.measured import Measured, from_laws
from widthwise.experiments.recipes import describes_several, read_all
from widthwise.experiments.scaling.fitting import fit_groups
from widthwise.experiments.scaling.points import Axes, gather
from widthwise.model.config import cost_summary
from widthwise.recipe.recipe import Recipe, load_recipe
from widthwise.records.quantities import OF_MODELS
from widthwise.records.record import Number
from widthwise.records.scaling import LawName
from widthwise.runs.rank_memory import Layout, ShardedModel

N_GPUS = 8
"""Those of a node, as the dynamic-width paper has them."""
NORM_FLOPS = 4
"""FLOPs that the virtual-width paper counts for each number that is normalised; here norms are not counted."""


def _memory_gb(recipe: Recipe) -> float:
    """Most memory that one of the GPUs of a node holds in a step."""
    with warnings.catch_warnings(action="ignore"):  # a model that is only counted need not be a good one
        sharded = ShardedModel.of(recipe)
    return sharded.memory(recipe.train, recipe.seq_len, Layout.of(recipe.train, N_GPUS)).total_bytes / 1e9


def _depth_connection_flops(recipe: Recipe) -> float:
    """Those of the writes of a site, coefficients apart, over d_model."""
    d_model = recipe.final_model.d_model
    static = recipe.final_model.residual.model_copy(update={"dynamic": False})
    return (static.cost(d_model, d_model, d_model).flops - static.cost(d_model, d_model, 0).flops) / d_model


def _width_connection_flops(recipe: Recipe) -> float:
    """Those of the norm, the coefficients, the reads and the carries of a site, over d_model."""
    d_model, residual = recipe.final_model.d_model, recipe.final_model.residual
    site = residual.cost(d_model, d_model, d_model).flops + NORM_FLOPS * math.prod(residual.slot_shape(d_model))
    return site / d_model - _depth_connection_flops(recipe)


def _layer_activation_bytes(recipe: Recipe, *parts: str) -> float:
    """Bytes that the first layer, or parts of it, keep of a token for the backward pass in bf16, over d_model."""
    costs = recipe.final_model.layer_costs()[0]
    return sum(costs[part].activation_bytes() for part in parts or costs) / recipe.final_model.d_model


OF_RECIPES: Mapping[str, Callable[[Recipe], Number]] = {
    "n_layers": lambda recipe: len(recipe.explicit_model.layers),
    "tokens": lambda recipe: recipe.n_tokens,
    "seq_len": lambda recipe: recipe.seq_len,
    "pflops_days": lambda recipe: recipe.pflops_days,
    "batch_size": lambda recipe: recipe.train.batch_size,
    "memory_gb": _memory_gb,
    "width_connection_flops": _width_connection_flops,
    "depth_connection_flops": _depth_connection_flops,
    "layer_activation_bytes": _layer_activation_bytes,
    "residual_activation_bytes": lambda recipe: _layer_activation_bytes(recipe, "residual"),
}
"""Quantity that follows from the recipe alone -> what counts it."""


def read_sizes(names: Sequence[str]) -> Mapping[str, Recipe]:
    """Return the bundled recipes by name, or the variants or points of a single one by theirs. Raises UserError."""
    first = recipe_path(names[0])
    if len(names) == 1 and describes_several(first):
        return read_all(first)[0].recipes
    return {name: load_recipe(recipe_path(name)) for name in names}


def count(recipe: Recipe, quantity: str) -> Number | None:
    """Return what can be counted without training: a number of the recipe, of the model, or an option of its
    feed-forwards that is the same in all layers."""
    if quantity in OF_RECIPES:
        return OF_RECIPES[quantity](recipe)
    if quantity in OF_MODELS:
        return OF_MODELS[quantity].of_cost(cost_summary(recipe.final_model, recipe.seq_len))
    options = {getattr(layer.ffn, quantity, None) for layer in recipe.explicit_model.layers}
    return options.pop() if len(options) == 1 else None


class PrintedPoints(Config):
    """Points that a paper prints, as a table of `configs/papers/points`, and the laws through them."""

    file: str
    over: tuple[str, ...] = pydantic.Field(min_length=1)
    """Columns of the x axes, one law over each."""
    y: str
    group: str | None = None
    """Column that names the group of a point; default: all are one group, named after the file."""
    baseline: str | None = None
    law: LawName | None = None
    """Default: the one that errs least at a point left out."""

    @cached_property
    def laws(self) -> Measured:
        """Their numbers, group by group. Raises UserError."""
        path = papers_folder() / "points" / f"{self.file}.csv"
        axes = {x: Axes(x, self.y, self.group) for x in self.over}
        return from_laws({x: fit_groups(gather([path], axes[x], self.baseline), "", "", self.law) for x in self.over})
