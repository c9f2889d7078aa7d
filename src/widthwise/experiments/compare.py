"""The `compare:` section of a recipe: named variants of it, or several recipes, matched to the first.

Learning rates, and other values of training, can be read from a sweep of the variants. Each variant gets the values of
its best point. The choice is fair if all variants were swept over the same grid and for the same share of their steps,
with seeds and held-out text that the comparison does not report.
"""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pydantic
from pydantic import Field

from widthwise.config_io import differences, parse, to_data
from widthwise.experiments.matching import (
    LARGEST_MISMATCH,
    ExperimentSection,
    MatchSection,
    NamedChanges,
    Point,
    adjusted,
    check_matched,
    check_trainable,
    match_with_options,
    matched_ratio,
)
from widthwise.experiments.plan import MOST_POINTS, Comparison, check_name, run_path
from widthwise.files import listed
from widthwise.mistakes import UserError, shortened
from widthwise.recipe.recipe import Recipe, parse_recipe, saved_recipe
from widthwise.records.outcome import Outcome, TunedVariant, Tuning, UnfinishedPoint, Variant
from widthwise.records.record import digests
from widthwise.run_dir import RunDir
from widthwise.runs.listing import stop_message
from widthwise.yaml_io import apply_overrides, merge, read_recipe, recipe_name

TUNABLE_SECTIONS = ("optimizer", "schedule", "train")
"""Sections whose keys the sweep may vary: other keys change the model or the held-out text."""
SAME_IN_SWEEP = ("model", "seq_len", "optimizer", "schedule", "growth", "train.batch_size")
"""Prefixes of the keys that must be equal in the sweep and in the comparison."""
SCALED_WITH_STEPS = ("schedule.warmup_steps", "schedule.decay_steps")
"""Exceptions to SAME_IN_SWEEP: these keys may differ in a sweep of fewer steps."""


class CompareConfig(ExperimentSection):
    """The `compare:` section of a recipe."""

    changes_key = "variants"
    variants: NamedChanges = Field(min_length=2, max_length=MOST_POINTS)
    """Name -> changes to the recipe; null drops a variant of an extended recipe. The first is the baseline."""
    match: MatchSection | None = None
    """Quantity that all variants must match within one percent, and the parts adjusted to reach it. Default: params,
    with the feed-forward of a variant that misses it adjusted where possible."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "CompareConfig":
        for name in self.variants:
            check_name("variants", name)
        if self.match is not None:
            self.match.check_names(self.variants, next(iter(self.variants)))
        return self

    def adjusted(self, point: Point, baseline: Point) -> Point:
        """Return a variant, adjusted to the baseline as `match` requires. Raises UserError if it still misses.

        Without a `match` section, a variant that cannot be adjusted stays unchanged.
        """
        if self.match is None:
            with suppress(UserError):
                if abs(matched_ratio(point.recipe, baseline.recipe, "params") - 1) > LARGEST_MISMATCH:
                    return adjusted(point, baseline, "params", ("ffn",))
        elif (parts := self.match.parts_of(point.name)) and point.name != baseline.name:
            return adjusted(point, baseline, self.match.quantity, parts)
        return point


def read_plan(
    paths: Path | str | Sequence[Path | str],
    overrides: Sequence[str] = (),
    seeds: Sequence[int] = (),
    match: str | None = None,
    adjust: str | None = None,
    only: str | None = None,
    rates_from: Path | str | None = None,
) -> Comparison:
    """Return the comparison of the `compare:` section of one recipe, or of several recipes with the baseline first.

    seeds, match, adjust: replace those keys of the section. only: the one variant to adjust; then none is checked.
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
    if not recipes:
        for name, change in config.variants.items():
            recipes[name] = parse(Recipe, merge(data, change), f"{where}.variants.{name}")
    points = {name: Point(name, recipe) for name, recipe in recipes.items()}
    baseline = next(iter(points.values()))
    for name, point in points.items():
        if only in (None, name):
            points[name] = config.adjusted(point, baseline)
    plan = Comparison(
        title="-vs-".join(recipe_name(path) for path in files),
        page_title=config.title,
        points=points,
        seeds=config.seeds,
        match="params" if config.match is None else config.match.quantity,
        baseline=baseline.name,
    )
    if rates_from is not None:
        plan = with_rates(plan, Path(rates_from))
    if only is None:
        for point in plan.points.values():
            check_trainable(point)
        advice = (
            "resize (a solved shape meets the budget with rounding: balanced), adjust (--adjust ffn), or set match: "
            "none under compare, or --match none"
        )
        check_matched(plan.points.values(), plan.points[baseline.name], plan.match, advice)
    return plan


def with_values(recipe: Recipe, values: Mapping[str, Any], name: str) -> Recipe:
    """Return a recipe with the values of some keys replaced."""
    data = to_data(recipe)
    apply_overrides(data, (f"{key}={json.dumps(value)}" for key, value in values.items()))
    return parse(Recipe, data, name)


def with_rates(plan: Comparison, folder: Path) -> Comparison:
    """Return the comparison in which each variant has its best values in the sweep in a folder.

    Raises UserError if the sweep has not finished, lacks a variant, or is not a fair choice.
    """
    sweep = Outcome.read(folder)
    where = f"--rates-from {folder}"
    grid = _common_grid(plan, sweep, where)
    points = dict(plan.points)
    variants = list[TunedVariant]()
    shares = dict[str, float]()
    for name, point in plan.points.items():
        best = _best(name, sweep, folder, where)
        recipe = with_values(point.recipe, best.values, name)
        swept = saved_recipe(RunDir(folder / best.runs[0]))
        _check_recipe(name, recipe, swept, where)
        shares[name] = swept.train.steps / recipe.train.steps
        points[name] = replace(point, recipe=recipe)
        is_at_limit = any(
            len(values) > 1 and best.values[key] in (min(values), max(values)) for key, values in grid.items()
        )
        variants.append(
            TunedVariant(name=name, chosen=dict(best.values), val_loss=best.val_loss.mean, is_at_limit=is_at_limit)
        )
    first = next(iter(shares))
    for name, share in shares.items():
        if not math.isclose(share, shares[first], rel_tol=0.02):
            raise UserError(
                f"{where}: {name} was trained for {share:.3g} of its steps, {first} for {shares[first]:.3g}; the share "
                "must be equal for all"
            )
    tuning = Tuning(
        sweep=str(folder),
        identity=digests(sweep.to_data())["points"],
        steps=shares[first],  # as a share of the steps of a compared run
        seeds=list(sweep.seeds),
        variants=variants,
    )
    return replace(plan, points=points, tuning=tuning)


def _common_grid(plan: Comparison, sweep: Outcome, where: str) -> dict[str, Sequence[Any]]:
    """Return a dict from recipe key to the values that the sweep tried for every variant.

    Raises UserError unless the sweep has finished, used other seeds, and has one grid for all variants.
    """
    if sweep.kind != "sweep" or sweep.is_open:
        state = f"an unfinished {sweep.kind}" if sweep.is_open else f"a {sweep.kind}"
        raise UserError(f"{where}: holds {state}; must be a finished sweep")
    shared_seeds = sorted({*plan.seeds} & {*sweep.seeds})
    if shared_seeds:
        raise UserError(f"{where}: seed {shared_seeds[0]} is reported too; must use none of {list(plan.seeds)}")
    first = next(iter(plan.points))
    for name in plan.points:
        if name not in sweep.axes:
            groups = ", ".join(filter(None, sweep.axes)) or "none"
            raise UserError(
                f"{where}: has no group {name}; its groups: {groups}; `widthwise sweep` of this comparison with --over "
                "makes one for each variant"
            )
        if sweep.axes[name] != sweep.axes[first]:
            raise UserError(f"{where}: {name} has other values than {first}; the grid must be the same for all")
    grid = dict[str, Sequence[Any]]()
    for key, values in sweep.axes[first].items():
        if not isinstance(values, Sequence):
            raise UserError(f"{where}: {key} is searched in a range; must be a grid")
        section, dot, _ = key.partition(".")
        if not dot or section not in TUNABLE_SECTIONS:
            raise UserError(f"{where}: varies {key}; must be a key of {', '.join(TUNABLE_SECTIONS)}")
        grid[key] = values
    return grid


def _best(name: str, sweep: Outcome, folder: Path, where: str) -> Variant:
    """Return the point of a variant with the lowest loss. Diverged points are not candidates.

    Raises UserError if all diverged, or if one failed for another reason.
    """
    for point in sweep.of_group(name):
        if isinstance(point, UnfinishedPoint):
            runs = [RunDir(folder / run_path(point.name, seed)) for seed in sweep.seeds]
            if not any(stop_message(run) for run in runs):  # only diverged runs have one
                raise UserError(f"{where}: {point.name} failed: {point.reason}; repeat the sweep")
    # sweep.variants is sorted by loss.
    best = next((point for point in sweep.variants if point.group == name and point.has_loss), None)
    if best is None:
        raise UserError(f"{where}: all runs of {name} diverged; sweep other values")
    return best


def _check_recipe(name: str, recipe: Recipe, swept: Recipe, where: str) -> None:
    """Raise UserError unless a run of the sweep trained the variant, and was judged on different held-out text.

    recipe: the variant with its best values; swept: the recipe of that run.
    """
    for key, value, expected in differences(to_data(swept), to_data(recipe.resolved())):
        if key.startswith(SAME_IN_SWEEP) and key not in SCALED_WITH_STEPS:
            raise UserError(
                f"{where}: {name}: {key} is {shortened(value)}, but {shortened(expected)} in the comparison; must be "
                "the same"
            )
    if swept.data != recipe.data:
        return
    start = recipe.train.validation_skip
    end = start + (recipe.train.validation_tokens or math.inf)
    swept_start = swept.train.validation_skip
    swept_end = swept_start + (swept.train.validation_tokens or math.inf)
    if swept_start < end and start < swept_end:
        advice = f"sweep with train.validation_skip={end}"
        if end == math.inf:
            advice = "set train.validation_tokens, at most half of the text, and sweep the rest"
        raise UserError(f"{where}: {name} was judged on held-out text that is reported; {advice}")
