"""The `tune:` part of a compare section. Before the comparison each variant is trained with factors of its own values,
for a share of its steps, on other seeds and judged on other held-out text; it is then compared with the best of them.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from operator import attrgetter
from typing import Annotated, Any

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
from widthwise.run_dir import RunFailed
from widthwise.yaml_io import apply_overrides

TUNING = "tune"
"""Folder of the runs, inside that of the comparison: a sweep of its own."""
MOST_BEYOND = 4
"""Values tried beyond an end of the grid, one after another, as long as the last is the best."""
SECTIONS = ("optimizer.", "schedule.", "train.")
"""Beginnings of the keys that may be tuned: the others change the model, or what it is trained and judged on."""


def _ascending(factors: tuple[float, ...]) -> tuple[float, ...]:
    if len(set(factors)) < len(factors):
        raise ValueError(f"got {list(factors)}; each factor may be given once")
    return tuple(sorted(factors))


Factors = Annotated[
    tuple[pydantic.PositiveFloat, ...],
    Field(min_length=2),
    pydantic.BeforeValidator(
        lambda factors: tuple(factors) if isinstance(factors, list) else factors,
        json_schema_input_type=list[pydantic.PositiveFloat],
    ),
    pydantic.AfterValidator(_ascending),
]


class TuneConfig(Config):
    """Values that every variant gets tuned, all in the same way."""

    over: dict[str, Factors] = Field(min_length=1)
    """Recipe key -> factors of each variant's own value; all combinations are trained."""
    steps: float = Field(default=0.25, gt=0, le=1)
    """Share of a variant's steps that each is trained for; a warm-up and a decay given in steps are shortened alike."""
    seeds: Seeds = (101,)
    """Seeds of these runs, none of which is reported."""


Place = tuple[int, ...]
"""A combination: for each key the index on its ladder."""


class Tuner:
    """The grid of every variant, as far as it has been extended."""

    def __init__(self, plan: Experiment):
        """plan: a comparison with `tune`. Raises UserError for what cannot be tuned."""
        assert plan.tune is not None
        self._plan, self._tune = plan, plan.tune
        self._ladders = [_ladder(factors) for factors in self._tune.over.values()]
        self._own = {name: self._own_values(name, recipe) for name, recipe in plan.recipes.items()}
        grid = [range(MOST_BEYOND, MOST_BEYOND + len(factors)) for factors in self._tune.over.values()]
        self._tried: dict[str, list[Place]] = {name: list(product(*grid)) for name in plan.points}

    def _own_values(self, name: str, recipe: Recipe) -> dict[str, float]:
        if recipe.growth:
            raise UserError(f"compare.tune: {name} grows in its run, at moments of the whole run; tune it in a sweep")
        if recipe.train.validation_tokens is None:
            raise UserError(
                "compare.tune: train.validation_tokens is not given, so that all held-out text is reported; give at "
                "most half of it, and as much again is read for tuning"
            )
        found: dict[str, float] = {}
        for key in self._tune.over:
            try:
                value = attrgetter(key)(recipe) if key.startswith(SECTIONS) else None
            except AttributeError:
                value = None
            if not isinstance(value, float) or value <= 0:
                sections = ", ".join(each.rstrip(".") for each in SECTIONS)
                got = f"compare.tune.over.{key}: got {value!r} in {name}"
                raise UserError(f"{got}; must be a number above 0 with decimals, of {sections}")
            found[key] = value
        return found

    def _values(self, name: str, place: Place) -> dict[str, float]:
        """Return key -> value; that of the factor 1 is the variant's own to the last digit."""
        own = self._own[name]
        return {
            key: own[key] if factor == 1 else rounded(own[key] * factor) for key, factor in self._factors(place).items()
        }

    def _factors(self, place: Place) -> dict[str, float]:
        return {key: ladder[index] for key, ladder, index in zip(self._tune.over, self._ladders, place)}

    def sweep(self) -> Experiment:
        """Return the runs of the grids. Raises UserError for a point that cannot be trained."""
        points, axes = dict[str, Point](), dict[str, dict[str, list[float]]]()
        for name, places in self._tried.items():
            every = [self._values(name, place) for place in places]
            axes[name] = {key: sorted({values[key] for values in every}) for key in self._tune.over}
            for values in every:
                point = point_name(name, values)
                recipe = _shortened(_with_values(self._plan.recipes[name], values, point), self._tune.steps)
                check_trainable(recipe, point)
                points[point] = Point(point, recipe, name, values)
        return Experiment(f"{self._plan.title}-{TUNING}", points, self._tune.seeds, axes=axes)

    @property
    def in_words(self) -> str:
        """The amount of work, as far as it is known before a run."""
        more = f"where an end of a variant's grid is best, up to {MOST_BEYOND} more values beyond it"
        return f"tuning {', '.join(self._tune.over)}: {self.sweep().in_words}; {more}"

    def extend(self, found: Outcome) -> list[str]:
        """Add what is untried beside the best of each variant, and return what is added in words; empty: nothing is.

        found: the record of the sweep.
        """
        words = []
        for name, places in self._tried.items():
            best, losses = self._best(name, found)
            further = [place for place in self._neighbours(best) if place not in losses]
            places += further
            added = ", ".join(_in_words(self._values(name, place)) for place in further)
            words += [f"{name} is best at the end of its grid: tried next, {added}"] if further else []
        return words

    def _neighbours(self, place: Place) -> list[Place]:
        """Return the places one step up or down a ladder."""
        steps = [(axis, place[axis] + step) for axis in range(len(place)) for step in (-1, 1)]
        return [
            (*place[:axis], index, *place[axis + 1 :]) for axis, index in steps if 0 <= index < len(self._ladders[axis])
        ]

    def _best(self, name: str, found: Outcome) -> tuple[Place, dict[Place, float]]:
        """Return the place with the lowest loss, and all losses, infinite where a run diverged."""
        means = {each.name: each.val_loss.mean for each in found.variants}
        known = {place: means.get(point_name(name, self._values(name, place))) for place in self._tried[name]}
        losses = {place: math.inf if loss is None else loss for place, loss in known.items()}
        return min(losses, key=losses.__getitem__), losses

    def tuned(self, found: Outcome, **costs: Any) -> Experiment:
        """Return the comparison in which each variant has its best values, and the record of how they were found.

        costs: of all runs, as the record has them. Raises RunFailed if all runs of a variant diverged.
        """
        points, variants = dict[str, Point](), list[TunedVariant]()
        for name, point in self._plan.points.items():
            best, losses = self._best(name, found)
            if losses[best] == math.inf:
                raise RunFailed(
                    f"compare.tune: every run of {name} diverged; give smaller factors, or steadier recipes"
                )
            values = self._values(name, best)
            points[name] = replace(point, recipe=_with_values(point.recipe, values, name))
            tried = [
                Tried(factors=self._factors(place), values=self._values(name, place), val_loss=losses[place])
                for place in sorted(losses)
            ]
            is_at_limit = any(index in (0, len(ladder) - 1) for index, ladder in zip(best, self._ladders))
            variants.append(TunedVariant(name=name, chosen=values, is_at_limit=is_at_limit, tried=tried))
        over = {key: list(factors) for key, factors in self._tune.over.items()}
        record = Tuning(over=over, steps=self._tune.steps, seeds=list(self._tune.seeds), variants=variants, **costs)
        return replace(self._plan, points=points, tune=None, tuning=record)


def _ladder(factors: tuple[float, ...]) -> list[float]:
    """Return the factors between those that may be tried beyond the ends, each in the proportion of the two there."""
    down, up = factors[0] / factors[1], factors[-1] / factors[-2]
    below = [factors[0] * down**n for n in range(MOST_BEYOND, 0, -1)]
    return [*below, *factors, *(factors[-1] * up**n for n in range(1, MOST_BEYOND + 1))]


def _with_values(recipe: Recipe, values: Mapping[str, float], name: str) -> Recipe:
    data = to_data(recipe)
    apply_overrides(data, (f"{key}={json.dumps(value)}" for key, value in values.items()))
    return parse(Recipe, data, name)


def _shortened(recipe: Recipe, share: float) -> Recipe:
    """Return a recipe for a share of the steps, judged once, at the end, on the held-out text behind the reported."""
    reported = recipe.train
    train = checked_copy(
        reported,
        "train",
        steps=max(1, round(share * reported.steps)),
        validation_skip=reported.validation_skip + (reported.validation_tokens or 0),
        **dict.fromkeys(("validate_every", "sample", "keep_every")),
        keep_best=False,
    )
    schedule = recipe.schedule.shortened(share)
    return checked_copy(recipe, "recipe", train=train, schedule=schedule, validation=ValidationConfig())


def _in_words(values: Mapping[str, float]) -> str:
    return " and ".join(f"{key} {value:g}" for key, value in values.items())
