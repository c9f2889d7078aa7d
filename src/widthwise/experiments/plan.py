"""What a comparison consists of: matched recipes, seeds, and one run for each pair."""

import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pydantic
from pydantic import Field

from widthwise.config_io import Config, UserError, merge, nearest_hint, parse, read_recipe, to_data
from widthwise.experiments.trend import TrendConfig
from widthwise.model.config import cost_summary
from widthwise.shape.breakdown import ratios
from widthwise.shape.kinds import Match
from widthwise.training.config import Recipe, Seed, parse_recipe

ALLOWED_IN_NAMES = frozenset(string.ascii_letters + string.digits + "._+-")
LARGEST_MISMATCH = 0.01
"""How far the matched quantity of a variant may be from the baseline's, as a fraction."""


class CompareConfig(Config):
    """The `compare:` section of a recipe."""

    variants: dict[str, dict[str, Any]] = Field(min_length=2)
    """Name -> changes to the recipe. The first is the baseline."""
    seeds: tuple[Seed, ...] = Field(default=(1, 2, 3), min_length=1)
    match: Literal[Match, "training_flops", "none"] = "params"
    """What all variants must have in common, within one percent. training_flops: the compute of the whole run, so that
    variants may train for different numbers of steps; where a model grows, each counts with its own steps."""
    trend: TrendConfig | None = None
    """A line of the losses over the logarithm of a quantity."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "CompareConfig":
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds: got {list(self.seeds)}; each seed may stand once")
        for name in self.variants:
            if not name or not set(name) <= ALLOWED_IN_NAMES:
                raise ValueError(f"variants: got the name {name!r}; letters, digits, '.', '_', '+' and '-' are allowed")
        for name in (self.trend and self.trend.variants) or ():
            if name not in self.variants:
                raise ValueError(f"trend.variants: got {name!r}; {nearest_hint(name, self.variants)}")
        return self


@dataclass(frozen=True)
class Plan:
    """A comparison before it is run. The first recipe is the baseline; seeds are set run by run."""

    title: str
    recipes: dict[str, Recipe]
    seeds: tuple[int, ...]
    match: str
    trend: TrendConfig | None = None

    @property
    def baseline(self) -> str:
        return next(iter(self.recipes))

    @property
    def workload(self) -> str:
        """How much there is to train, in words."""
        recipes, n_seeds = list(self.recipes.values()), len(self.seeds)
        compute = n_seeds * sum(recipe.pflops_days for recipe in recipes)
        steps = _range([recipe.train.steps for recipe in recipes])
        tokens = _range([recipe.n_tokens for recipe in recipes])
        return (
            f"{len(recipes) * n_seeds} runs of {steps} steps and {tokens} tokens, together {compute:.3g} PFLOP/s-days"
        )

    def trend_values(self) -> dict[str, float]:
        """Variant -> the quantity of the trend, where there is one. Raises UserError where no line can be fitted."""
        if self.trend is None:
            return {}
        return self.trend.values(
            {name: cost_summary(recipe.final_model, recipe.seq_len) for name, recipe in self.recipes.items()}
        )

    def run_recipe(self, name: str, seed: int) -> Recipe:
        """One run. The seed sets initial weights and data order: runs of one seed see the same text in one order."""
        recipe = self.recipes[name]
        return recipe.model_copy(update={"train": recipe.train.model_copy(update={"seed": seed})})

    def run_path(self, name: str, seed: int) -> Path:
        """Where the run goes, inside the comparison's folder."""
        return Path("runs") / f"{name}-seed{seed}"


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def read_plan(
    paths: Sequence[Path], overrides: Sequence[str] = (), seeds: Sequence[int] = (), match: str | None = None
) -> Plan:
    """One recipe with a `compare:` section, or several recipes of which the first is the baseline. Raises UserError."""
    config, recipes = _variants(paths[0], overrides) if len(paths) == 1 else _recipes(paths, overrides)
    if seeds or match:
        changes = {"seeds": list(seeds) or list(config.seeds), "match": match or config.match}
        config = parse(CompareConfig, to_data(config) | changes, "compare")
    plan = Plan("-vs-".join(path.stem for path in paths), recipes, config.seeds, config.match, config.trend)
    check_fair(plan)
    return plan


def _variants(path: Path, overrides: Sequence[str]) -> tuple[CompareConfig, dict[str, Recipe]]:
    """One recipe, varied as its compare section says."""
    data = read_recipe(path, overrides)
    if "compare" not in data:
        raise UserError(f"{path}: has no compare section; give several recipes, or name variants under compare")
    config = parse(CompareConfig, data.pop("compare"), f"{path}: compare")
    return config, {
        name: parse(Recipe, merge(data, change), f"{path}: compare.variants.{name}")
        for name, change in config.variants.items()
    }


def _recipes(paths: Sequence[Path], overrides: Sequence[str]) -> tuple[CompareConfig, dict[str, Recipe]]:
    """Several recipes, each named as its file."""
    recipes = {path.stem: parse_recipe(read_recipe(path, overrides), str(path)) for path in paths}
    if len(recipes) < len(paths):
        raise UserError(f"{', '.join(map(str, paths))}: two recipes have the same name; names tell the variants apart")
    return parse(CompareConfig, {"variants": {name: {} for name in recipes}}, "compare"), recipes


def check_fair(plan: Plan) -> None:
    """Raises UserError, before hours of training, where a variant cannot be trained or compared.

    Variants are comparable where data and tokens agree, and the matched quantity to within one percent. Where that is
    the compute of training, tokens follow from it; the runs of a seed see the same ones as far as they go.
    """
    baseline = plan.recipes[plan.baseline]
    for name, recipe in plan.recipes.items():
        _check_recipe(recipe, name)
        for what, read in SHARED.items():
            if read(recipe) != read(baseline) and (what, plan.match) != ("train.steps", "training_flops"):
                raise UserError(
                    f"{name}: {what} is {read(recipe)}, but {read(baseline)} in {plan.baseline}; not comparable"
                )
        ratio = _matched_ratio(recipe, baseline, plan.match)
        if abs(ratio - 1) > LARGEST_MISMATCH:
            raise UserError(
                f"{name}: {plan.match} is {ratio:.4f} of {plan.baseline}'s, and a matched comparison allows "
                f"{LARGEST_MISMATCH:.0%}; {_remedy(recipe, ratio, plan.match)}, or say match: none under compare, or "
                "--match none"
            )
    plan.trend_values()  # raises where no line can be fitted


def _matched_ratio(recipe: Recipe, baseline: Recipe, match: str) -> float:
    """The matched quantity over the baseline's, of the models that the runs end with; 1 where nothing is matched."""
    if match == "none":
        return 1.0
    if match == "training_flops":
        return recipe.training_flops / baseline.training_flops
    return ratios(*(cost_summary(each.final_model, each.seq_len) for each in (recipe, baseline)))[match]


def _remedy(recipe: Recipe, ratio: float, match: str) -> str:
    if match != "training_flops":
        return "resize it (a solved shape meets the budget with rounding: balanced)"
    per_step = recipe.training_flops - recipe.training_flops_until(recipe.train.steps - 1)
    n_steps = recipe.train.steps + round((1 / ratio - 1) * recipe.training_flops / per_step)
    return f"train.steps: {n_steps} would match"


def _check_recipe(recipe: Recipe, name: str) -> None:
    try:
        recipe.check()
    except UserError as error:
        raise UserError(f"{name}: {error}") from None


SHARED = {
    "data": lambda recipe: recipe.data,
    "seq_len": lambda recipe: recipe.seq_len,
    "train.steps": lambda recipe: recipe.train.steps,
    "train.batch_size": lambda recipe: recipe.train.batch_size,
    "train.precision": lambda recipe: recipe.train.precision,
    "train.validation_tokens": lambda recipe: recipe.train.validation_tokens,
}
"""What the runs of a comparison have in common."""
