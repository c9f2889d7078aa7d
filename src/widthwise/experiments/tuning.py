"""The `tune:` part of a compare section. Before the comparison each variant is trained with factors of its own values,
for a share of its steps, on other seeds and judged on other held-out text; it is then compared with the best of them.
"""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from operator import attrgetter
from typing import Any

import pydantic
from pydantic import Field

from widthwise.config_io import Config, UserError, checked_copy, parse, to_data
from widthwise.experiments.axes import rounded
from widthwise.experiments.experiment import Experiment, Point
from widthwise.experiments.matching import check_trainable
from widthwise.experiments.sweep import point_name
from widthwise.recipe.recipe import Recipe
from widthwise.recipe.train_section import Seeds, ValidationConfig
from widthwise.records.outcome import Outcome, Tried, TunedVariant, Tuning
from widthwise.records.record import finite
from widthwise.run_dir import RunFailed
from widthwise.yaml_io import apply_overrides

TUNING = "tune"
"""Folder of the runs, inside that of the comparison: a sweep of its own."""
MOST_BEYOND = 4
"""Values tried beyond an end of the grid, one after another, as long as the last is the best."""
SECTIONS = ("optimizer.", "schedule.", "train.")
"""Beginnings of the keys that may be tuned: the others change the model, or what it is trained and judged on."""


class TuneConfig(Config):
    """Values that every variant gets tuned, all in the same way."""

    over: dict[str, list[pydantic.PositiveFloat]] = Field(min_length=1)
    """Recipe key -> factors of each variant's own value; all combinations are trained."""
    steps: float = Field(default=0.5, gt=0, le=1)
    """Share of a variant's steps that each is trained for; a warm-up and a decay given in steps are shortened alike."""
    seeds: Seeds = (101,)
    """Seeds of these runs, none of which is reported."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "TuneConfig":
        for key, factors in self.over.items():
            if len(factors) < 2 or len(set(factors)) < len(factors):
                raise ValueError(f"over.{key}: got {factors}; must be two factors or more, each once")
        return self

    def tuner(self, plan: Experiment) -> "Tuner":
        """Return the grids of a comparison. Raises UserError for what cannot be tuned."""
        return Tuner(plan, self)


Place = tuple[int, ...]
"""A combination: for each key the index on its ladder."""


class Tuner:
    """The grid of every variant, as far as it has been extended."""

    def __init__(self, plan: Experiment, tune: TuneConfig):
        self._plan, self._tune = plan, tune
        self._ladders = [_ladder(factors) for factors in self._tune.over.values()]
        grid = [range(MOST_BEYOND, MOST_BEYOND + len(factors)) for factors in self._tune.over.values()]
        self._tried = {name: {place: self._point(name, place) for place in product(*grid)} for name in plan.points}

    def _factors(self, place: Place) -> dict[str, float]:
        return {key: ladder[index] for key, ladder, index in zip(self._tune.over, self._ladders, place)}

    def _point(self, name: str, place: Place) -> Point:
        """Return a short run of a variant. Raises UserError if it cannot be trained."""
        recipe = self._plan.recipes[name]
        own = {key: (_own_value(name, recipe, key), factor) for key, factor in self._factors(place).items()}
        values = {key: value if factor == 1 else rounded(value * factor) for key, (value, factor) in own.items()}
        point = point_name(name, values)
        recipe = _shortened(name, _with_values(recipe, values, point), self._tune.steps)
        check_trainable(recipe, point)
        return Point(point, recipe, name, values)

    def sweep(self) -> Experiment:
        """Return the runs of all grids."""
        points = {point.name: point for tried in self._tried.values() for point in tried.values()}
        axes = {
            name: {key: sorted({point.values[key] for point in tried.values()}) for key in self._tune.over}
            for name, tried in self._tried.items()
        }
        return Experiment(f"{self._plan.title}-{TUNING}", points, self._tune.seeds, axes=axes)

    @property
    def in_words(self) -> str:
        """The amount of work before the comparison."""
        more = f"where an end of a variant's grid is best, up to {MOST_BEYOND} more values beyond it"
        return f"tuning {', '.join(self._tune.over)}: {self.sweep().in_words}; {more}"

    def extend(self, found: Outcome) -> list[str]:
        """Add what is untried and allowed beside the best of each variant, and return the names of these runs.

        found: the record of the sweep.
        """
        added: dict[str, Point] = {}
        for name, tried in self._tried.items():
            best = min(losses := self._losses(name, found), key=losses.__getitem__)
            for axis, ladder in enumerate(self._ladders):
                for index in (best[axis] - 1, best[axis] + 1):
                    place = (*best[:axis], index, *best[axis + 1 :])
                    if 0 <= index < len(ladder) and place not in tried:
                        with suppress(UserError):  # a recipe refuses the value: nothing can lie beyond this end
                            point = tried[place] = self._point(name, place)
                            added[point.name] = point
        return list(added)

    def _losses(self, name: str, found: Outcome) -> dict[Place, float]:
        """Return the mean loss of each place, infinite where a run diverged."""
        means = {each.name: finite(each.val_loss.mean) for each in found.variants if each.has_loss}
        return {place: means.get(point.name, math.inf) for place, point in self._tried[name].items()}

    def tuned(self, found: Outcome, **costs: Any) -> Experiment:
        """Return the comparison in which each variant has its best values, and the record of how they were found.

        costs: of all runs, as the record has them. Raises RunFailed if all runs of a variant diverged.
        """
        points, variants = dict[str, Point](), list[TunedVariant]()
        for name, point in self._plan.points.items():
            tried, losses = self._tried[name], self._losses(name, found)
            best = min(losses, key=losses.__getitem__)
            if losses[best] == math.inf:
                raise RunFailed(f"compare.tune: all runs of {name} diverged; tune.over needs other factors")
            chosen = tried[best].values
            points[name] = replace(point, recipe=_with_values(point.recipe, chosen, name))
            is_at_limit = any(index in (0, len(ladder) - 1) for index, ladder in zip(best, self._ladders))
            records = [
                Tried(factors=self._factors(place), values=tried[place].values, val_loss=losses[place])
                for place in sorted(losses)
            ]
            variants.append(TunedVariant(name=name, chosen=chosen, is_at_limit=is_at_limit, tried=records))
        record = Tuning(steps=self._tune.steps, seeds=list(self._tune.seeds), variants=variants, **costs)
        return replace(self._plan, points=points, tune=None, tuning=record)


def _ladder(factors: Sequence[float]) -> list[float]:
    """Return the factors between those that may be tried beyond the ends, each in the proportion of the two there."""
    factors = sorted(factors)
    down, up = factors[0] / factors[1], factors[-1] / factors[-2]
    below = [factors[0] * down**n for n in range(MOST_BEYOND, 0, -1)]
    return [*below, *factors, *(factors[-1] * up**n for n in range(1, MOST_BEYOND + 1))]


def _own_value(name: str, recipe: Recipe, key: str) -> float:
    """Return a variant's value of a key. Raises UserError if it is none that factors may change."""
    try:
        value = attrgetter(key)(recipe) if key.startswith(SECTIONS) else None
    except AttributeError:
        value = None
    if isinstance(value, float) and value > 0:
        return value
    raise UserError(
        f"compare.tune.over.{key}: got {value!r} in {name}; must be a number above 0, no whole one, of "
        f"{', '.join(each.rstrip('.') for each in SECTIONS)}"
    )


def _with_values(recipe: Recipe, values: Mapping[str, float], name: str) -> Recipe:
    data = to_data(recipe)
    apply_overrides(data, (f"{key}={json.dumps(value)}" for key, value in values.items()))
    return parse(Recipe, data, name)


def _shortened(name: str, recipe: Recipe, share: float) -> Recipe:
    """Return a recipe for a share of the steps, judged once, at the end, on the held-out text behind the reported.

    Raises UserError if all held-out text is reported, or if the model grows.
    """
    reported = recipe.train
    if recipe.growth:
        raise UserError(f"compare.tune: {name} grows, at steps that are those of the whole run; tune it in a sweep")
    if reported.validation_tokens is None:
        raise UserError(
            f"compare.tune: {name} is judged on all held-out text; tuning reads as much again, so give "
            "train.validation_tokens, at most half of it"
        )
    changes = dict.fromkeys(("validate_every", "sample", "keep_every")) | {"keep_best": False}
    skip = reported.validation_skip + reported.validation_tokens
    steps = max(1, round(share * reported.steps))
    train = checked_copy(reported, f"{name}: train", steps=steps, validation_skip=skip, **changes)
    schedule = recipe.schedule.shortened(share)
    return checked_copy(recipe, name, train=train, schedule=schedule, validation=ValidationConfig())
