"""Fair comparisons: settings that recipes must share, costs that must be equal, and resizing to equal cost."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Literal, get_args

import pydantic
from pydantic import Discriminator, Tag

from widthwise.config_io import Config, check_one_of, checked_copy, differences, mistakes_of, to_data
from widthwise.mistakes import UserError, shortened
from widthwise.model.config import cost_summary
from widthwise.recipe.recipe import Recipe
from widthwise.recipe.train_section import Seeds
from widthwise.records.quantities import MODEL_COSTS
from widthwise.shape.adjusting import Adjust, Knob, depth_at_aspect, nearest_size
from widthwise.shape.kinds import Match
from widthwise.shape.template import ModelTemplate

MatchedQuantity = Literal[Match, "training_flops", "none"]
"""Quantity that recipes can be required to match. training_flops: the compute of the whole run, so that the numbers of
steps may differ; if a model grows, each phase counts with its steps."""

LARGEST_MISMATCH = 0.01
"""Largest allowed relative difference of a variant's matched quantity to the baseline's."""

HELD_OUT = ("data", "seq_len", "validation", "train.validation_tokens", "train.validation_skip")
"""Settings that determine the held-out windows, and the additional texts and tasks."""
SHARED = (*HELD_OUT, "train.steps", "train.batch_size", "train.precision")
"""Settings that are equal in all runs of a comparison."""


@dataclass(frozen=True)
class Change:
    """A change of one number of a variant."""

    key: str
    """Key in the recipe."""
    before: float
    after: float

    def __str__(self) -> str:
        before = f"{self.before:.7g}"
        after = f"{self.after:.7g}"
        return f"{self.key} stays {after}" if before == after else f"{self.key} {before} -> {after}"


@dataclass(frozen=True)
class Adjustment:
    """The changes of a variant, and its remaining miss."""

    changes: tuple[Change, ...]
    match: MatchedQuantity
    miss: float
    """Quantity of the variant relative to the baseline, minus 1."""

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.changes))}, {self.match} missed by {self.miss:+.3%}"


@dataclass(frozen=True)
class Point:
    """One recipe of an experiment; seeds are set run by run."""

    name: str
    recipe: Recipe
    group: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Recipe key -> value, for a point on axes."""
    adjustment: Adjustment | None = None
    """Changes that match it to its baseline."""


def check_trainable(point: Point) -> None:
    """Raise UserError, with the name of the point, if the parts of its recipe are incompatible."""
    with mistakes_of(point.name):
        point.recipe.check()


def check_same_windows(point: Point, reference: Point) -> None:
    """Raise UserError if two points are not judged on the same held-out text."""
    if differing := list(_differences(point, reference, HELD_OUT)):
        raise UserError(f"{'; '.join(differing)}; not comparable")


def check_matched(points: Iterable[Point], baseline: Point, match: MatchedQuantity, advice: str) -> None:
    """Raise UserError, with all differences, if a point is not comparable with the baseline.

    Points are comparable if data and tokens are equal, and the matched quantity within LARGEST_MISMATCH. With
    training_flops, the numbers of tokens may differ; the runs of a seed still see the same tokens first. advice: how to
    adjust, or to disable matching.
    """
    shared = [key for key in SHARED if (key, match) != ("train.steps", "training_flops")]
    unfair = list[str]()
    missed = list[str]()
    for point in points:
        recipe = point.recipe
        unfair += _differences(point, baseline, shared)
        ratio = matched_ratio(recipe, baseline.recipe, match)
        if abs(ratio - 1) > LARGEST_MISMATCH:
            message = f"{point.name}: {match} is {ratio:.4f} of {baseline.name}'s"
            if match == "training_flops":
                flops_of_last_step = recipe.training_flops - recipe.training_flops_until(recipe.train.steps - 1)
                n_steps = recipe.train.steps + round((1 / ratio - 1) * recipe.training_flops / flops_of_last_step)
                message += f" (train.steps: {n_steps} is nearest)"
            missed.append(message)
    errors = list[str]()
    if unfair:
        errors.append(f"{'; '.join(unfair)}; not comparable")
    if missed:
        errors.append(f"{'; '.join(missed)}, and a matched comparison allows {LARGEST_MISMATCH:.0%}; {advice}")
    if errors:
        raise UserError("; ".join(errors))


def _differences(point: Point, reference: Point, shared: Iterable[str]) -> Iterator[str]:
    """Yield a message for each key in which two recipes differ. shared: paths of settings that must be equal."""
    for path in shared:
        settings = [attrgetter(path)(recipe) for recipe in (point.recipe, reference.recipe)]
        if settings[0] != settings[1]:
            data = [to_data(setting) if isinstance(setting, Config) else setting for setting in settings]
            for key, value, expected in differences(data[0], data[1], path):
                yield f"{point.name}: {key} is {shortened(value)}, but {shortened(expected)} in {reference.name}"


def matched_ratio(recipe: Recipe, baseline: Recipe, match: MatchedQuantity) -> float:
    """Return the matched quantity of the final model relative to the baseline; 1 if nothing is matched."""
    return 1.0 if match == "none" else matched_quantity(recipe, match) / matched_quantity(baseline, match)


def matched_quantity(recipe: Recipe, match: MatchedQuantity) -> float:
    """Return a cost of the final model, or the training FLOPs of the whole run. match: not "none"."""
    if match == "training_flops":
        return recipe.training_flops
    return MODEL_COSTS[match].of_cost(cost_summary(recipe.final_model, recipe.seq_len))


def _parse_parts(parts: Any) -> Any:
    """Parse "d_model,ffn" as ("d_model", "ffn"). Raises ValueError for an unknown or repeated part."""
    if isinstance(parts, str):
        parts = [part.strip() for part in parts.split(",")]
    if not isinstance(parts, (list, tuple)):
        return parts
    for index, part in enumerate(parts):
        if part not in get_args(Adjust):
            raise ValueError(f"got {part!r}; allowed: {', '.join(get_args(Adjust))}")
        if part in parts[:index]:
            raise ValueError(f"got {part!r} twice; each part is adjusted once")
    return tuple(parts)


Parts = Annotated[
    tuple[Adjust, ...],
    pydantic.Field(min_length=1),
    pydantic.BeforeValidator(_parse_parts, json_schema_input_type=str | list[Adjust]),
]
"""Adjusted parts, in order: later parts refine the result of the first."""


class MatchConfig(Config):
    """Quantity that variants must match, and the parts of a variant that are adjusted until it matches."""

    quantity: MatchedQuantity = "params"
    adjust: Annotated[
        Annotated[Parts, Tag("all")] | Annotated[dict[str, Parts], Tag("by name")],
        Discriminator(lambda adjust: "by name" if isinstance(adjust, Mapping) else "all"),
    ] = pydantic.Field(default_factory=dict)
    """Part of every variant except the baseline, or several parts in order, or a dict from variant to parts; variants
    without an entry must match unchanged."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "MatchConfig":
        if self.quantity == "none" and self.adjust:
            raise ValueError("quantity: got 'none' with adjust; name the quantity to which parts are adjusted")
        return self

    def parts_of(self, name: str) -> tuple[Adjust, ...]:
        """Return the adjusted parts of a variant, in order."""
        return self.adjust.get(name, ()) if isinstance(self.adjust, Mapping) else self.adjust

    def check_names(self, names: Iterable[str], baseline: str | None = None) -> None:
        """Raise ValueError if `adjust` names an unknown variant, or the baseline."""
        adjust = self.adjust if isinstance(self.adjust, Mapping) else {}
        for name in adjust:
            if name == baseline:
                raise ValueError(f"match.adjust: got {name!r}, the baseline, which is never adjusted")
            check_one_of("match.adjust", name, set(names) - {baseline})


MatchSection = Annotated[
    MatchConfig,
    pydantic.BeforeValidator(
        lambda match: {"quantity": match} if isinstance(match, str) else match,
        json_schema_input_type=MatchedQuantity | MatchConfig,
    ),
]
"""A quantity, or a mapping with the adjusted parts, as written in a recipe."""


def without_null(changes: Any) -> Any:
    """Return named changes without null ones. With null, a recipe drops a name of the recipe that it extends."""
    if not isinstance(changes, dict):
        return changes
    return {name: change for name, change in changes.items() if change is not None}


NamedChanges = Annotated[
    dict[str, dict[str, Any]],
    pydantic.BeforeValidator(without_null, json_schema_input_type=dict[str, dict[str, Any] | None]),
]
"""Name -> changes to the recipe; null drops a name of an extended recipe."""


class ExperimentSection(Config):
    """Base of the sections of a recipe that describe an experiment."""

    changes_key: ClassVar[str]
    """Key of the variants or groups by name. A null entry is dropped, also from `match.adjust`."""
    title: str | None = None
    """Title of the page; default: the name of its folder."""
    seeds: Seeds = (1, 2, 3)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _drop_unused_adjustments(cls, section: Any) -> Any:
        """Remove the entries of `match.adjust` for variants or groups that are null."""
        match section:
            case {"match": {"adjust": dict(adjust), **options}, cls.changes_key: dict(changes)}:
                used = {name: parts for name, parts in adjust.items() if changes.get(name, {}) is not None}
                return section | {"match": options | {"adjust": used}}
        return section


def match_with_options(match: Any, quantity: str | None, adjust: str | None) -> Any:
    """Return the `match` of a section, as plain data, changed by options; --match none alone drops `adjust`."""
    if quantity == "none" and adjust is None:
        return quantity
    options = {key: value for key, value in (("quantity", quantity), ("adjust", adjust)) if value is not None}
    if not options:
        return match
    section = match if isinstance(match, Mapping) else {"quantity": match or "params"}
    return {**section, **options}


def adjusted(
    point: Point, baseline: Point, match: MatchedQuantity, parts: Sequence[Adjust], aspect: float | None = None
) -> Point:
    """Return the point with one number of each part changed, in order, to match the baseline as nearly as possible.

    aspect: d_model / n_layers, for which the depth is solved first. Raises UserError if a part has no adjustable
    number, or if the nearest value misses by more than LARGEST_MISMATCH.
    """
    recipe = point.recipe
    changes: list[Change] = []
    with mistakes_of(point.name):
        budget = matched_quantity(baseline.recipe, match)
        if not isinstance(recipe.model, ModelTemplate):
            raise UserError("model.layers: lists every layer; only a model with d_model and n_layers can be adjusted")
        if recipe.growth:
            raise UserError(
                "growth: a model that grows during its run cannot be adjusted; match training_flops with train.steps"
            )
        model = recipe.model

        def miss_of(model: ModelTemplate) -> float:
            return matched_quantity(recipe.model_copy(update={"model": model}), match) / budget - 1

        if aspect is not None:
            if not aspect > 0:
                raise UserError(f"aspect: got {aspect!r}; d_model / n_layers must be above 0")
            n_layers = depth_at_aspect(model, aspect, miss_of)
            changes.append(Change("model.n_layers", model.n_layers, n_layers))
            model = checked_copy(model, "model", n_layers=n_layers)
        for part in parts:
            model, change = _nearest(Knob.of(model, part, recipe.seq_len), miss_of)
            changes.append(change)
        miss = miss_of(model)
        if abs(miss) > LARGEST_MISMATCH and parts:
            # The next value may be refused. If so, this raises the reason, which helps more than the error below.
            knob = Knob.of(model, parts[-1], recipe.seq_len)
            with mistakes_of(f"{match} is {1 + miss:.4f} of the baseline's ({changes[-1]}); the next value is refused"):
                miss_of(knob.at(max(1, knob.start + (1 if miss < 0 else -1))))
    if abs(miss) > LARGEST_MISMATCH:
        last = changes[-1]
        raise UserError(
            f"{point.name}: {match} is {1 + miss:.4f} of the baseline's at the nearest {last.key}, {last.after:.7g}, "
            f"and a matched comparison allows {LARGEST_MISMATCH:.0%}; adjust something else"
        )
    adjustment = Adjustment(tuple(changes), match, miss)
    return replace(point, recipe=recipe.model_copy(update={"model": model}), adjustment=adjustment)


def _nearest(knob: Knob, miss_of: Callable[[ModelTemplate], float]) -> tuple[ModelTemplate, Change]:
    """Return the model with a knob at the value nearest to the budget, and the change. miss_of: signed, relative."""
    try:
        unchanged_miss = abs(miss_of(knob.template))
    except UserError:  # for example a width that is no multiple of its heads
        unchanged_miss = math.inf
    nearest = nearest_size(lambda n_steps: miss_of(knob.at(n_steps)), knob.start) if unchanged_miss else knob.start
    key = ".".join(filter(None, ["model", knob.section, knob.adjustable.key]))
    value = knob.adjustable.value
    if abs(miss_of(knob.at(nearest))) < unchanged_miss:
        return knob.at(nearest), Change(key, value, nearest * knob.adjustable.step)
    return knob.template, Change(key, value, value)  # the value may be between two steps
