"""A recipe that describes several runs: what they cost, and one of them alone."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from widthwise.config_io import UserError, nearest_hint
from widthwise.experiments.adjusting import Adjustment
from widthwise.experiments.ladder import read_ladder
from widthwise.experiments.matching import check_trainable
from widthwise.experiments.plan import check_fair, planned, read_variants
from widthwise.experiments.sweep.plan import SweepPlan, read_sweep
from widthwise.model.config import cost_summary
from widthwise.recipe.recipe import SEVERAL_RUNS, Recipe, load_recipe
from widthwise.records.cost import CostSummary
from widthwise.records.quantities import OF_MODELS
from widthwise.yaml_io import read_recipe


@dataclass(frozen=True)
class Variants:
    """The variants of a comparison, or the points of a sweep or ladder."""

    recipes: Mapping[str, Recipe]
    baseline: str | None
    """The one that others are compared with, if there is one."""
    adjustments: Mapping[str, Adjustment] = field(default_factory=dict)
    refusal: str | None = None
    """Why `compare` would not run them."""
    n_drawn: int = 0
    """Further points, which a search draws when it runs."""

    def summary(self) -> dict[str, Any]:
        """Their costs, and the ratios to the baseline's, as plain data. Raises UserError for an impossible model."""
        costs = {name: self._costs(name) for name in self.recipes}
        base = None if self.baseline is None else costs[self.baseline]
        rows = [
            {
                "name": name,
                **own,
                "ratio": None if base is None else {key: own[key] / base[key] for key in own},
                "adjusted": asdict(self.adjustments[name]) if name in self.adjustments else None,
            }
            for name, own in costs.items()
        ]
        return {"baseline": self.baseline, "refusal": self.refusal, "n_drawn": self.n_drawn, "variants": rows}

    def _costs(self, name: str) -> dict[str, float]:
        recipe = self.recipes[name]
        check_trainable(recipe, name)
        cost: CostSummary = cost_summary(recipe.final_model, recipe.seq_len)
        counted = {key: each.of_cost(cost) for key, each in OF_MODELS.items() if each.has_ratio}
        return {**counted, "tokens": recipe.n_tokens, "training_flops": recipe.training_flops}


def describes_several(path: Path, overrides: Sequence[str] = ()) -> bool:
    """Whether a recipe has a section of variants, points or rungs. Raises UserError if it cannot be read."""
    data = read_recipe(path, overrides)
    if "discover" in data:
        raise UserError(
            f"{path}: has a discover section, and its shapes are not known yet; `widthwise discover {path} --dry-run` "
            "shows the search"
        )
    return not SEVERAL_RUNS.keys().isdisjoint(data)


def read_all(path: Path, overrides: Sequence[str] = ()) -> Variants:
    """All that a recipe of several runs describes, adjusted as `compare` would; what it would refuse as not matched is
    read nevertheless. Raises UserError."""
    if "compare" in read_recipe(path, overrides):
        plan = planned([path], overrides)
        try:
            check_fair(plan)
            refusal = None
        except UserError as error:
            refusal = str(error)
        return Variants(plan.recipes, plan.baseline, plan.adjustments, refusal)
    sweep = _points(path, overrides)
    recipes = {name: point.recipe for name, point in sweep.grid.items()} or dict([sweep.reference])
    baseline = None if sweep.baseline is None else sweep.baseline.name
    return Variants(recipes, baseline, sweep.adjustments, n_drawn=sweep.n_points - len(sweep.grid))


def read_one(path: Path, overrides: Sequence[str] = (), variant: str | None = None) -> Recipe:
    """One run: a recipe, or a variant or point of one that describes several, as its experiment would train it but with
    the recipe's own seed. Raises UserError."""
    if variant is None:
        return load_recipe(path, overrides)
    if not describes_several(path, overrides):
        sections = ", ".join(SEVERAL_RUNS)
        raise UserError(f"--variant: got {variant!r}, but {path} describes one run; it has none of {sections}")
    if "compare" not in read_recipe(path, overrides):
        grid = _points(path, overrides).grid
        _check_name(variant, grid)
        return grid[variant].recipe
    config, recipes = read_variants(path, overrides)
    _check_name(variant, recipes)
    recipe, _ = config.sized(variant, recipes[variant], next(iter(recipes.values())))
    check_trainable(recipe, variant)
    return recipe


def _points(path: Path, overrides: Sequence[str]) -> SweepPlan:
    return read_sweep(path, overrides) if "sweep" in read_recipe(path, overrides) else read_ladder(path, overrides)


def _check_name(variant: str, names: Mapping[str, Any]) -> None:
    if variant not in names:
        raise UserError(f"--variant: got {variant!r}; {nearest_hint(variant, names)}")
