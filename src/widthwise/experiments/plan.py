"""The plan of a comparison: matched recipes, seeds, and one run for each pair."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pydantic
from pydantic import Field

from widthwise.bundled import recipe_name
from widthwise.computing import Precision
from widthwise.config_io import Config, UserError, nearest_hint, parse, to_data
from widthwise.experiments.adjusting import (
    Adjustment,
    MatchSection,
    adjusted,
    match_asked,
    named_in,
    parts_of,
    quantity_of,
)
from widthwise.experiments.matching import (
    LARGEST_MISMATCH,
    Matched,
    check_matched,
    check_trainable,
    matched_ratio,
)
from widthwise.experiments.runs import ALLOWED_IN_NAMES, run_path, seeded
from widthwise.experiments.trend import TrendConfig
from widthwise.experiments.workload import counted_work
from widthwise.files import listed
from widthwise.merging import merge
from widthwise.model.config import cost_summary
from widthwise.recipe.recipe import Recipe, parse_recipe
from widthwise.recipe.train_section import Seeds
from widthwise.records.listing import PlannedRun, PlannedRuns
from widthwise.yaml_io import read_recipe


class CompareConfig(Config):
    """The `compare:` section of a recipe."""

    variants: dict[str, dict[str, Any]] = Field(min_length=2)
    """Name -> changes to the recipe. The first is the baseline."""
    seeds: Seeds = (1, 2, 3)
    match: MatchSection | None = None
    """The quantity that all variants must match within one percent, and what is adjusted to that end. Where not given,
    the parameters, and of a variant that misses them the feed-forward, if it can be adjusted."""
    trend: TrendConfig | None = None
    """Fits a line of the losses over the logarithm of a quantity."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "CompareConfig":
        for name in self.variants:
            if not name or not set(name) <= ALLOWED_IN_NAMES:
                raise ValueError(f"variants: got the name {name!r}; letters, digits, '.', '_', '+' and '-' are allowed")
        for name in (self.trend and self.trend.variants) or ():
            if name not in self.variants:
                raise ValueError(f"trend.variants: got {name!r}; {nearest_hint(name, self.variants)}")
        baseline, *others = self.variants
        for name in named_in(self.match):
            if name == baseline:
                raise ValueError(f"match.adjust: got {name!r}, the baseline, to which the others are adjusted")
            if name not in others:
                raise ValueError(f"match.adjust: got {name!r}; {nearest_hint(name, others)}")
        return self

    @property
    def quantity(self) -> Matched:
        """The matched quantity."""
        return quantity_of(self.match or "params")

    def sized(self, name: str, recipe: Recipe, baseline: Recipe) -> tuple[Recipe, Adjustment | None]:
        """A variant with what `match` adjusts of it. Raises UserError if that does not bring it near the baseline.

        What is only adjusted because nothing is said stays as it is where it cannot be.
        """
        if name == next(iter(self.variants)):
            return recipe, None
        if parts := parts_of(self.match, name):
            return adjusted(name, recipe, baseline, self.quantity, parts)
        with suppress(UserError):
            if self.match is None and abs(matched_ratio(recipe, baseline, self.quantity) - 1) > LARGEST_MISMATCH:
                return adjusted(name, recipe, baseline, self.quantity, ("ffn",))
        return recipe, None

    def asked(self, seeds: Sequence[int], match: str | None, adjust: str | None) -> "CompareConfig":
        """With what the command line asks for in place of its own. Raises UserError."""
        data = to_data(self)
        changes = {"seeds": list(seeds) or list(self.seeds), "match": match_asked(data["match"], match, adjust)}
        return parse(CompareConfig, data | changes, "compare")


@dataclass(frozen=True)
class ComparisonPlan:
    """A comparison before it is run. The first recipe is the baseline; seeds are set run by run."""

    title: str
    recipes: dict[str, Recipe]
    seeds: tuple[int, ...]
    match: Matched
    trend: TrendConfig | None = None
    adjustments: Mapping[str, Adjustment] = field(default_factory=dict)
    """Variant -> what became of it."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Variant -> why it could not be adjusted as asked."""

    @property
    def baseline(self) -> str:
        return next(iter(self.recipes))

    @property
    def runs(self) -> dict[str, tuple[str, int]]:
        """Name of a run's folder -> its variant and seed, in the order of training, seed by seed."""
        return {self.run_path(name, seed).name: (name, seed) for seed in self.seeds for name in self.recipes}

    def settled(self, choose: Callable[[], Precision]) -> "ComparisonPlan":
        """The same comparison in one precision that is chosen, for all recipes that say `auto`."""
        chosen = cache(choose)
        return replace(self, recipes={name: recipe.settled(chosen) for name, recipe in self.recipes.items()})

    @property
    def identity(self) -> str:
        """Equal for comparisons that may share a study: all that decides what comparison.json holds."""
        recipes = [[name, to_data(recipe)] for name, recipe in self.recipes.items()]
        described = [recipes, list(self.seeds), self.match, self.trend and to_data(self.trend)]
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()

    def planned_runs(self, command: str) -> PlannedRuns:
        """What is written down before the first run. command: how the comparison is repeated."""
        runs = [
            PlannedRun(
                path=str(self.run_path(name, seed)), variant=name, seed=seed, n_steps=self.recipes[name].train.steps
            )
            for name, seed in self.runs.values()
        ]
        return PlannedRuns(title=self.title, command=command, baseline=self.baseline, runs=runs)

    @property
    def workload(self) -> str:
        """The amount of work, in words."""
        recipes, n_seeds = list(self.recipes.values()), len(self.seeds)
        compute = n_seeds * sum(recipe.pflops_days for recipe in recipes)
        steps = _range([recipe.train.steps for recipe in recipes])
        tokens = _range([recipe.n_tokens for recipe in recipes])
        return (
            f"{len(recipes) * n_seeds} runs of {steps} steps and {tokens} tokens, together {compute:.3g} PFLOP/s-days"
        )

    def workload_as_data(self) -> dict[str, Any]:
        """The planned work, as `counted_work` describes it."""
        return counted_work(self.recipes, len(self.seeds), self.baseline, self.match, self.adjustments)

    @property
    def adjustment_lines(self) -> list[str]:
        """For each adjusted variant its numbers and its miss, in words, and for each with dead parameters how many."""
        dead = {name: recipe.final_model.n_dead_params for name, recipe in self.recipes.items()}
        return [
            *(f"{name}: {adjustment}" for name, adjustment in self.adjustments.items()),
            *(f"{name}: {n:,} of its parameters never learn, as its shape has it" for name, n in dead.items() if n),
        ]

    def trend_values(self) -> dict[str, float]:
        """Variant -> the quantity of the trend, if there is one. Raises UserError if no line can be fitted."""
        if self.trend is None:
            return {}
        return self.trend.values(
            {name: cost_summary(recipe.final_model, recipe.seq_len) for name, recipe in self.recipes.items()}
        )

    def run_recipe(self, name: str, seed: int) -> Recipe:
        """One run. The seed sets initial weights and data order: runs of one seed see the same text in one order."""
        return seeded(self.recipes[name], seed)

    def run_path(self, name: str, seed: int) -> Path:
        """Where the run goes, inside the comparison's folder."""
        return run_path(name, seed)


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def read_plan(
    paths: Path | str | Sequence[Path | str],
    overrides: Sequence[str] = (),
    seeds: Sequence[int] = (),
    match: str | None = None,
    adjust: str | None = None,
    tolerance: float = LARGEST_MISMATCH,
) -> ComparisonPlan:
    """One recipe with a `compare:` section, or several recipes of which the first is the baseline. Raises UserError.

    seeds, match, adjust: replace those of the section. tolerance: how far the matched quantity may be from the
    baseline's, as a fraction.
    """
    plan = planned(paths, overrides, seeds, match, adjust)
    check_fair(plan, tolerance)
    return plan


def planned(
    paths: Path | str | Sequence[Path | str],
    overrides: Sequence[str] = (),
    seeds: Sequence[int] = (),
    match: str | None = None,
    adjust: str | None = None,
) -> ComparisonPlan:
    """As `read_plan`, but what it would refuse as not comparable is left to `check_fair`."""
    files = listed(paths)
    config, recipes = read_variants(files[0], overrides) if len(files) == 1 else _recipes(files, overrides)
    config = config.asked(seeds, match, adjust)
    baseline, adjustments, refused = next(iter(recipes.values())), {}, {}
    for name in recipes:
        try:
            recipes[name], adjustment = config.sized(name, recipes[name], baseline)
            adjustments |= {} if adjustment is None else {name: adjustment}
        except UserError as error:
            refused[name] = str(error)
    title = "-vs-".join(recipe_name(path) for path in files)
    return ComparisonPlan(title, recipes, config.seeds, config.quantity, config.trend, adjustments, refused)


def read_variants(path: Path, overrides: Sequence[str]) -> tuple[CompareConfig, dict[str, Recipe]]:
    """One recipe, varied as its compare section says, before anything is adjusted. Raises UserError."""
    data = read_recipe(path, overrides)
    if "compare" not in data:
        raise UserError(f"{path}: has no compare section; give several recipes, or name variants under compare")
    config = parse(CompareConfig, data.pop("compare"), f"{path}: compare")
    return config, {
        name: parse(Recipe, merge(data, change), f"{path}: compare.variants.{name}")
        for name, change in config.variants.items()
    }


def _recipes(paths: Sequence[Path], overrides: Sequence[str]) -> tuple[CompareConfig, dict[str, Recipe]]:
    """Several recipes, each named after its file."""
    recipes = {recipe_name(path): parse_recipe(read_recipe(path, overrides), str(path)) for path in paths}
    if len(recipes) < len(paths):
        raise UserError(f"{', '.join(map(str, paths))}: two recipes have the same name; names tell the variants apart")
    return parse(CompareConfig, {"variants": {name: {} for name in recipes}}, "compare"), recipes


def check_fair(plan: ComparisonPlan, tolerance: float = LARGEST_MISMATCH) -> None:
    """Raises UserError, before hours of training, if a variant cannot be trained or compared."""
    recipes = {name: recipe for name, recipe in plan.recipes.items() if name not in plan.refused}
    for name, recipe in recipes.items():
        check_trainable(recipe, name)
    advice = (
        "resize (a solved shape meets the budget with rounding: balanced), adjust (--adjust ffn), or say match: none "
        "under compare, or --match none"
    )
    check_matched(
        recipes, plan.baseline, recipes[plan.baseline], plan.match, advice, tolerance, refused=plan.refused.values()
    )
    plan.trend_values()  # raises where no line can be fitted
