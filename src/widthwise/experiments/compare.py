"""The `compare:` section of a recipe: named variants of it, or several recipes, matched to the first."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic import Field

from widthwise.config_io import Config, parse
from widthwise.experiments.matching import (
    LARGEST_MISMATCH,
    Matched,
    MatchSection,
    adjusted,
    check_matched,
    check_trainable,
    match_with_options,
    matched_ratio,
    without_null,
    without_unused,
)
from widthwise.experiments.plan import MOST_POINTS, Comparison, Point, check_name
from widthwise.experiments.rates import with_rates
from widthwise.files import listed
from widthwise.mistakes import UserError
from widthwise.recipe.recipe import Recipe, parse_recipe
from widthwise.recipe.train_section import Seeds
from widthwise.yaml_io import merge, read_recipe, recipe_name


class CompareConfig(Config):
    """The `compare:` section of a recipe."""

    title: str | None = None
    """Title of the page; default: the name of its folder."""
    variants: Annotated[
        dict[str, dict[str, Any]],
        pydantic.BeforeValidator(without_null, json_schema_input_type=dict[str, dict[str, Any] | None]),
    ] = Field(min_length=2, max_length=MOST_POINTS)
    """Name -> changes to the recipe; null drops a variant of an extended recipe. The first is the baseline."""
    seeds: Seeds = (1, 2, 3)
    match: MatchSection | None = None
    """Quantity that all variants must match within one percent, and the parts adjusted to reach it. Default: params,
    with the feed-forward of a variant that misses it adjusted where possible."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _adjust_used(cls, section: Any) -> Any:
        return without_unused(section, "variants")

    @pydantic.model_validator(mode="after")
    def _check(self) -> "CompareConfig":
        for name in self.variants:
            check_name("variants", name)
        if self.match is not None:
            self.match.check_names(self.variants, next(iter(self.variants)))
        return self

    @property
    def matched(self) -> Matched:
        return "params" if self.match is None else self.match.quantity

    def sized(self, name: str, recipe: Recipe, baseline: Recipe) -> Point:
        """Return a variant, adjusted to the baseline as `match` requires. Raises UserError if it still misses.

        Without a `match` section, a variant that cannot be adjusted stays unchanged.
        """
        adjustment = None
        if self.match is None:
            with suppress(UserError):
                if abs(matched_ratio(recipe, baseline, self.matched) - 1) > LARGEST_MISMATCH:
                    recipe, adjustment = adjusted(name, recipe, baseline, self.matched, ("ffn",))
        elif (parts := self.match.parts_of(name)) and name != next(iter(self.variants)):
            recipe, adjustment = adjusted(name, recipe, baseline, self.matched, parts)
        return Point(name, recipe, adjustment=adjustment)


def read_plan(
    paths: Path | str | Sequence[Path | str],
    overrides: Sequence[str] = (),
    seeds: Sequence[int] = (),
    match: str | None = None,
    adjust: str | None = None,
    tolerance: float | None = LARGEST_MISMATCH,
    only: str | None = None,
    rates_from: Path | str | None = None,
) -> Comparison:
    """Return the comparison of the `compare:` section of one recipe, or of several recipes with the baseline first.

    seeds, match, adjust: replace those keys of the section. tolerance: largest relative difference of the matched
    quantity to the baseline; None skips `check_fair`. only: the variant that is adjusted; default: all.
    rates_from: folder of a sweep with the values of each variant. Raises UserError.
    """
    files = listed(paths)
    data = dict[str, Any]()
    recipes = dict[str, Recipe]()
    where = "compare"
    if len(files) == 1:
        data = read_recipe(files[0], overrides)
        where = f"{files[0]}: compare"
        if "compare" not in data:
            raise UserError(f"{files[0]}: has no compare section; give several recipes, or name variants under compare")
        if "sweep" in data:
            raise UserError(f"{files[0]}: has both a compare and a sweep section; must have one of them")
        section = data.pop("compare")
    else:
        recipes = {recipe_name(path): parse_recipe(read_recipe(path, overrides), str(path)) for path in files}
        if len(recipes) < len(files):
            names = ", ".join(map(str, files))
            raise UserError(f"{names}: two recipes have the same name, which names the variant; rename one")
        section = {"variants": {name: {} for name in recipes}}
    if isinstance(section, dict):
        options = {"seeds": list(seeds), "match": match_with_options(section.get("match"), match, adjust)}
        section = section | {key: value for key, value in options.items() if value}
    config = parse(CompareConfig, section, where)
    recipes = recipes or {
        name: parse(Recipe, merge(data, change), f"{where}.variants.{name}") for name, change in config.variants.items()
    }
    baseline = next(iter(recipes))
    points = dict[str, Point]()
    refused = dict[str, str]()
    for name, recipe in recipes.items():
        points[name] = Point(name, recipe)
        try:
            if only in (None, name):
                points[name] = config.sized(name, recipe, recipes[baseline])
        except UserError as error:
            refused[name] = str(error)
    plan = Comparison(
        title="-vs-".join(recipe_name(path) for path in files),
        page_title=config.title,
        points=points,
        seeds=config.seeds,
        match=config.matched,
        baseline=baseline,
        refused=refused,
    )
    if rates_from is not None:
        plan = with_rates(plan, Path(rates_from))
    if tolerance is not None:
        check_fair(plan, tolerance)
    return plan


def check_fair(plan: Comparison, tolerance: float = LARGEST_MISMATCH) -> None:
    """Raises UserError, before hours of training, if a variant cannot be trained or compared."""
    recipes = {name: recipe for name, recipe in plan.recipes.items() if name not in plan.refused}
    for name, recipe in recipes.items():
        check_trainable(recipe, name)
    advice = (
        "resize (a solved shape meets the budget with rounding: balanced), adjust (--adjust ffn), or set match: none "
        "under compare, or --match none"
    )
    base = next(iter(recipes))
    check_matched(recipes, base, recipes[base], plan.match, advice, tolerance, refused=plan.refused.values())


def plan_of_search(summary: Mapping[str, Any], recipes: Sequence[Path], seeds: Sequence[int] = ()) -> Comparison:
    """Return the comparison of the shapes that `widthwise search` found with its base.

    summary: of a `shape.search.SearchResult`. recipes: the base, then recipes written for candidates. They are matched
    in the quantity of the search, to its tolerance or one percent: the larger. Nothing is matched if the budget differs
    from the cost of the base: then only the candidates match each other.
    """
    match = summary["match"]
    tolerance = max(summary["tolerance"], LARGEST_MISMATCH)
    miss_of_base = abs(summary["baseline"][match] / summary["budget"] - 1)
    if miss_of_base > LARGEST_MISMATCH:
        return read_plan(recipes, seeds=seeds, match="none")
    return read_plan(recipes, seeds=seeds, match=match, tolerance=tolerance + miss_of_base)
