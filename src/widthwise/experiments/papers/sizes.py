"""The models of an item at the paper's size: nothing is trained, everything is counted."""

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import pydantic

from widthwise.bundled import recipe_path
from widthwise.config_io import Config
from widthwise.experiments.variants import describes_several, read_all
from widthwise.model.config import cost_summary
from widthwise.recipe.recipe import Recipe, load_recipe
from widthwise.records.cost import CostSummary
from widthwise.records.quantities import OF_MODELS
from widthwise.records.record import Number
from widthwise.runs.rank_memory import Layout, ShardedModel

N_GPUS = 8
"""Those of a node, as the dynamic-width paper has them."""
NORM_FLOPS = 4
"""What the virtual-width paper counts for each number that is normalised; here norms are not counted."""


def _memory_gb(recipe: Recipe) -> float:
    """What one of the GPUs of a node holds at the moment of a step with the most."""
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
    """What the first layer, or parts of it, keep of a token for the backward pass in bf16, over d_model."""
    costs = recipe.final_model.layer_costs()[0]
    return sum(costs[part].activation_bytes() for part in parts or costs) / recipe.final_model.d_model


OF_RECIPES: Mapping[str, Callable[[Recipe], Number]] = {
    "n_layers": lambda recipe: len(recipe.explicit_model.layers),
    "steps": lambda recipe: recipe.train.steps,
    "tokens": lambda recipe: recipe.n_tokens,
    "seq_len": lambda recipe: recipe.seq_len,
    "training_flops": lambda recipe: recipe.training_flops,
    "pflops_days": lambda recipe: recipe.pflops_days,
    "batch_size": lambda recipe: recipe.train.batch_size,
    "memory_gb": _memory_gb,
    "width_connection_flops": _width_connection_flops,
    "depth_connection_flops": _depth_connection_flops,
    "layer_activation_bytes": _layer_activation_bytes,
    "residual_activation_bytes": lambda recipe: _layer_activation_bytes(recipe, "residual"),
}
"""Quantity that follows from the recipe alone -> what counts it."""
CHANGE = "_change"
"""Ending of a quantity that is counted relative to the baseline: its ratio minus 1."""


@dataclass(frozen=True)
class _Sized:
    """A recipe whose numbers are counted; its cost is worked out once, when it is first asked for."""

    recipe: Recipe

    @cached_property
    def _cost(self) -> CostSummary:
        return cost_summary(self.recipe.final_model, self.recipe.seq_len)

    def count(self, quantity: str) -> Number | None:
        """Of the recipe, of the model, or an option of its feed-forwards that is the same in all layers."""
        if quantity in OF_RECIPES:
            return OF_RECIPES[quantity](self.recipe)
        if quantity in OF_MODELS:
            return OF_MODELS[quantity].of_cost(self._cost)
        options = {getattr(layer.ffn, quantity, None) for layer in self.recipe.explicit_model.layers}
        return options.pop() if len(options) == 1 else None


class Sizes(Config):
    """Recipes of single models, or one that describes several."""

    recipes: tuple[str, ...] = pydantic.Field(min_length=1)
    """Names of bundled recipes; the rows are the names, or those of the variants or points of a single one."""

    @cached_property
    def _by_row(self) -> Mapping[str, _Sized]:
        """Row -> its model. Raises UserError."""
        first = recipe_path(self.recipes[0])
        if len(self.recipes) == 1 and describes_several(first):
            recipes = read_all(first).recipes
        else:
            recipes = {name: load_recipe(recipe_path(name)) for name in self.recipes}
        return {row: _Sized(recipe) for row, recipe in recipes.items()}

    def count(self, row: str, quantity: str, baseline: str | None) -> Number | None:
        """The quantity of a row, if it can be counted without training. Raises UserError."""
        if quantity.endswith(CHANGE) and baseline is not None:
            own, other = (self.count(name, quantity.removesuffix(CHANGE), None) for name in (row, baseline))
            return None if own is None or other is None else own / other - 1
        sized = self._by_row.get(row)
        return None if sized is None else sized.count(quantity)
