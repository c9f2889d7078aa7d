"""Learning rates, and other values of training, that a comparison reads from a sweep of its variants.

Each variant gets the values of its best point. The choice is fair if all variants had the same grid and the same share
of their steps, with seeds and held-out text that the comparison does not report.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from widthwise.config_io import differences, parse, to_data
from widthwise.experiments.plan import Comparison, run_path
from widthwise.mistakes import UserError, shortened
from widthwise.recipe.recipe import Recipe, saved_recipe
from widthwise.records.outcome import OpenPoint, Outcome, TunedVariant, Tuning, Variant
from widthwise.records.record import digests
from widthwise.run_dir import RunDir
from widthwise.runs.listing import stop_message
from widthwise.yaml_io import apply_overrides

SECTIONS = ("optimizer.", "schedule.", "train.")
"""Prefixes of the keys whose values are read: other keys change the model or the held-out text."""
SHARED = ("model", "seq_len", "optimizer", "schedule", "growth", "train.batch_size")
"""Prefixes of the keys that must be equal in the sweep and in the comparison."""
SHORTENED = ("schedule.warmup_steps", "schedule.decay_steps")
"""Shared keys that may differ in a sweep of fewer steps."""


def with_values(recipe: Recipe, values: Mapping[str, Any], name: str) -> Recipe:
    """Return a recipe with the values of some keys replaced."""
    data = to_data(recipe)
    apply_overrides(data, (f"{key}={json.dumps(value)}" for key, value in values.items()))
    return parse(Recipe, data, name)


def with_rates(plan: Comparison, folder: Path) -> Comparison:
    """Return the comparison with each variant's best values in the sweep in a folder.

    Raises UserError if the sweep has not finished, lacks a variant, or is not a fair choice.
    """
    sweep = Outcome.read(folder)
    where = f"--rates-from {folder}"
    _check_grids(plan, sweep, where)
    points = dict(plan.points)
    variants = list[TunedVariant]()
    shares = dict[str, float]()
    for name, point in plan.points.items():
        best = _best(name, sweep, folder, where)
        recipe = with_values(point.recipe, best.values, name)
        tried = saved_recipe(RunDir(folder / best.runs[0]))
        _check_recipe(name, recipe, tried, where)
        shares[name] = tried.train.steps / recipe.train.steps
        points[name] = replace(point, recipe=recipe)
        is_at_limit = any(
            len(values) > 1 and best.values[key] in (min(values), max(values))
            for key, values in sweep.axes[name].items()
            if isinstance(values, Sequence)
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
        steps=shares[first],
        seeds=list(sweep.seeds),
        variants=variants,
    )
    return replace(plan, points=points, tuning=tuning)


def _check_grids(plan: Comparison, sweep: Outcome, where: str) -> None:
    """Raise UserError unless a finished sweep on other seeds has one grid of values for all variants."""
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
    for key, values in sweep.axes[first].items():
        if not isinstance(values, Sequence):
            raise UserError(f"{where}: {key} is searched in a range; must be a grid")
        if not key.startswith(SECTIONS):
            sections = ", ".join(section.rstrip(".") for section in SECTIONS)
            raise UserError(f"{where}: varies {key}; must be a key of {sections}")


def _best(name: str, sweep: Outcome, folder: Path, where: str) -> Variant:
    """Return the point of a variant with the lowest loss; a diverged point counts as the worst.

    Raises UserError if all diverged, or if one failed for another reason.
    """
    for point in sweep.of_group(name):
        if isinstance(point, OpenPoint):
            runs = (RunDir(folder / run_path(point.name, seed)) for seed in sweep.seeds)
            if not any(map(stop_message, runs)):
                raise UserError(f"{where}: {point.name} failed: {point.reason}; repeat the sweep")
    finished = (point for point in sweep.variants if point.group == name and point.has_loss)
    best = next(finished, None)
    if best is None:
        raise UserError(f"{where}: all runs of {name} diverged; sweep other values")
    return best


def _check_recipe(name: str, recipe: Recipe, tried: Recipe, where: str) -> None:
    """Raise UserError unless a run of the sweep trained the variant, and was judged on different held-out text.

    recipe: the variant with its values.
    """
    for key, swept, compared in differences(to_data(tried), to_data(recipe.resolved())):
        if key.startswith(SHARED) and key not in SHORTENED:
            raise UserError(
                f"{where}: {name}: {key} is {shortened(swept)}, but {shortened(compared)} in the comparison; must be "
                "the same"
            )
    if tried.data != recipe.data:
        return
    reported = _held_out(recipe)
    judged = _held_out(tried)
    if judged[0] < reported[1] and reported[0] < judged[1]:
        if reported[1] == math.inf:
            advice = "set train.validation_tokens, at most half of the text, and sweep the rest"
        else:
            advice = f"sweep with train.validation_skip={reported[1]}"
        raise UserError(f"{where}: {name} was judged on held-out text that is reported; {advice}")


def _held_out(recipe: Recipe) -> tuple[float, float]:
    """Return the indices of the first token of the held-out text of a run, and of the first after it."""
    start = recipe.train.validation_skip
    n_tokens = recipe.train.validation_tokens
    return start, math.inf if n_tokens is None else start + n_tokens
