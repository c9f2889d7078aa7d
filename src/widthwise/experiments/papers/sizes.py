"""The models of an item at the paper's size: nothing is trained, everything is counted."""

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

OF_RECIPES: Mapping[str, Callable[[Recipe], Number]] = {
    "n_layers": lambda recipe: len(recipe.explicit_model.layers),
    "steps": lambda recipe: recipe.train.steps,
    "tokens": lambda recipe: recipe.n_tokens,
    "seq_len": lambda recipe: recipe.seq_len,
    "training_flops": lambda recipe: recipe.training_flops,
    "pflops_days": lambda recipe: recipe.pflops_days,
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
        if quantity in OF_RECIPES:
            return OF_RECIPES[quantity](self.recipe)
        return OF_MODELS[quantity].of_cost(self._cost) if quantity in OF_MODELS else None


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
