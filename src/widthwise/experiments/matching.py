"""Fair comparisons: settings that recipes must share, costs that must be equal, and variants resized until they are."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, Literal, get_args

import pydantic
from pydantic import Discriminator, Tag

from widthwise.config_io import Config, UserError, check_one_of, checked_copy, differences, mistakes_of, to_data
from widthwise.mistakes import shortened
from widthwise.model.config import cost_summary
from widthwise.recipe.recipe import Recipe
from widthwise.records.quantities import OF_MODELS
from widthwise.shape.adjusting import Adjust, Knob, depth_at_aspect
from widthwise.shape.kinds import Match
from widthwise.shape.template import ModelTemplate

Matched = Literal[Match, "training_flops", "none"]
"""The quantity that recipes can be required to match. training_flops: the compute of the whole run, so that they may
train for different numbers of steps; if a model grows, each phase counts with its own steps."""

LARGEST_MISMATCH = 0.01
"""Largest allowed relative difference of a variant's matched quantity to the baseline's."""

HELD_OUT = ("data", "seq_len", "validation", "train.validation_tokens", "train.validation_skip")
"""Settings that determine the held-out windows, and the further texts and tasks."""
SHARED = (*HELD_OUT, "train.steps", "train.batch_size", "train.precision")
"""Settings that all runs of a comparison share."""


def check_trainable(recipe: Recipe, name: str) -> None:
    """Raises UserError, with the name of the recipe, if its parts do not fit together."""
    with mistakes_of(name):
        recipe.check()


def check_same_windows(name: str, recipe: Recipe, other_name: str, other: Recipe) -> None:
    """Raises UserError if two recipes are not judged on the same held-out text."""
    if found := _differences(name, recipe, other_name, other, HELD_OUT):
        raise UserError(f"{'; '.join(found)}; not comparable")


def check_matched(
    recipes: Mapping[str, Recipe],
    baseline_name: str,
    baseline: Recipe,
    match: Matched,
    advice: str,
    tolerance: float = LARGEST_MISMATCH,
    refused: Iterable[str] = (),
) -> None:
    """Raises UserError, with all that differs, if some recipes are not comparable with the baseline.

    Recipes are comparable if data and tokens agree, and the matched quantity to within the tolerance. If that is the
    compute of training, the tokens follow from it; the runs of a seed see the same ones as far as they go. advice: how
    to adjust, or to turn matching off; refused: what is wrong with others.
    """
    shared = [what for what in SHARED if (what, match) != ("train.steps", "training_flops")]
    unfair, missed = [], []
    for name, recipe in recipes.items():
        unfair += _differences(name, recipe, baseline_name, baseline, shared)
        ratio = matched_ratio(recipe, baseline, match)
        if abs(ratio - 1) > tolerance:
            missed.append(f"{name}: {match} is {ratio:.4f} of {baseline_name}'s{_steps_to_match(recipe, ratio, match)}")
    found = [*refused]
    if unfair:
        found.append(f"{'; '.join(unfair)}; not comparable")
    if missed:
        found.append(f"{'; '.join(missed)}, and a matched comparison allows {tolerance:.0%}; {advice}")
    if found:
        raise UserError("; ".join(found))


def _differences(name: str, recipe: Recipe, other_name: str, other: Recipe, shared: Iterable[str]) -> list[str]:
    found = []
    for what in shared:
        pair = [attrgetter(what)(each) for each in (recipe, other)]
        if pair[0] != pair[1]:
            own, expected = (to_data(each) if isinstance(each, Config) else each for each in pair)
            found += differences(own, expected, what)
    return [f"{name}: {key} is {shortened(own)}, but {shortened(value)} in {other_name}" for key, own, value in found]


def matched_ratio(recipe: Recipe, baseline: Recipe, match: Matched) -> float:
    """Return the matched quantity of the final model over the baseline's; 1 if nothing is matched."""
    return 1.0 if match == "none" else matched_quantity(recipe, match) / matched_quantity(baseline, match)


def matched_quantity(recipe: Recipe, match: Matched) -> float:
    """Return a cost of the final model, or the training FLOPs of the whole run. match: not "none"."""
    if match == "training_flops":
        return recipe.training_flops
    return OF_MODELS[match].of_cost(cost_summary(recipe.final_model, recipe.seq_len))


def _steps_to_match(recipe: Recipe, ratio: float, match: Matched) -> str:
    if match != "training_flops":
        return ""
    per_step = recipe.training_flops - recipe.training_flops_until(recipe.train.steps - 1)
    n_steps = recipe.train.steps + round((1 / ratio - 1) * recipe.training_flops / per_step)
    return f" (train.steps: {n_steps} would match)"


def _in_turn(parts: Any) -> Any:
    """Parse "d_model,ffn" as ("d_model", "ffn"). Raises ValueError."""
    if isinstance(parts, str):
        parts = [part.strip() for part in parts.split(",")]
    if not isinstance(parts, (list, tuple)):
        return parts
    for place, part in enumerate(parts):
        if part not in get_args(Adjust):
            raise ValueError(f"got {part!r}; allowed: {', '.join(get_args(Adjust))}")
        if part in parts[:place]:
            raise ValueError(f"got {part!r} twice; each part is adjusted once")
    return tuple(parts)


Parts = Annotated[
    tuple[Adjust, ...],
    pydantic.Field(min_length=1),
    pydantic.BeforeValidator(_in_turn, json_schema_input_type=str | list[Adjust]),
]
"""Adjusted parts, one after the other: the later ones refine what the first did roughly."""


class MatchConfig(Config):
    """Quantity that variants must match, and the parts of each that are adjusted until it does."""

    quantity: Matched = "params"
    adjust: Annotated[
        Annotated[Parts, Tag("all")] | Annotated[dict[str, Parts], Tag("by name")],
        Discriminator(lambda adjust: "by name" if isinstance(adjust, Mapping) else "all"),
    ] = pydantic.Field(default_factory=dict)
    """The part of every variant but the baseline, or several in turn, or variant -> its parts; the others must match as
    they are."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "MatchConfig":
        if self.quantity == "none" and self.adjust:
            raise ValueError("quantity: got 'none' beside adjust; name the quantity to which parts are adjusted")
        return self

    def parts_of(self, name: str) -> tuple[Adjust, ...]:
        """Return the parts of a variant that are adjusted, in turn."""
        return self.adjust.get(name, ()) if isinstance(self.adjust, Mapping) else self.adjust

    def check_names(self, names: Iterable[str], baseline: str | None = None) -> None:
        """Raises ValueError if `adjust` names an unknown variant, or the one to which the others are adjusted."""
        for name in self.adjust if isinstance(self.adjust, Mapping) else ():
            if name == baseline:
                raise ValueError(f"match.adjust: got {name!r}, the baseline, to which the others are adjusted")
            check_one_of("match.adjust", name, set(names) - {baseline})


MatchSection = Annotated[
    MatchConfig,
    pydantic.BeforeValidator(
        lambda match: {"quantity": match} if isinstance(match, str) else match,
        json_schema_input_type=Matched | MatchConfig,
    ),
]
"""A quantity, or with what is adjusted, as written in a recipe."""


def match_asked(own: Any, quantity: str | None, adjust: str | None) -> Any:
    """Return a section's match, as data, with the changes of the command line; `none` also ends adjusting."""
    if quantity == "none" and adjust is None:
        return quantity
    asked = {key: value for key, value in (("quantity", quantity), ("adjust", adjust)) if value is not None}
    return {**(own if isinstance(own, Mapping) else {"quantity": own or "params"}), **asked} if asked else own


@dataclass(frozen=True)
class Change:
    """A change of one number of a variant."""

    key: str
    """Its key in the recipe."""
    before: float
    after: float

    def __str__(self) -> str:
        before, after = f"{self.before:.7g}", f"{self.after:.7g}"
        return f"{self.key} stays {after}" if before == after else f"{self.key} {before} -> {after}"


@dataclass(frozen=True)
class Adjustment:
    """The changes of a variant, and how far it still misses."""

    changes: tuple[Change, ...]
    match: Matched
    miss: float
    """The quantity of the variant over the baseline's, minus 1."""

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.changes))}, {self.match} missed by {self.miss:+.3%}"


def adjusted(
    name: str, recipe: Recipe, baseline: Recipe, match: Matched, parts: Sequence[Adjust], aspect: float | None = None
) -> tuple[Recipe, Adjustment]:
    """Return the variant with one number of each part changed, in turn, so that it comes as near as possible to the
    baseline.

    aspect: d_model / n_layers; its depth is found first. Raises UserError if a part has no such
    number, or if the nearest misses by more than a comparison allows.
    """
    changes: list[Change] = []
    with mistakes_of(name):
        budget = matched_quantity(baseline, match)
        if aspect is not None:
            recipe, change = _at_depth(recipe, budget, match, aspect)
            changes.append(change)
        for part in parts:
            recipe, change = _nearest(recipe, budget, match, part)
            changes.append(change)
        miss = matched_quantity(recipe, match) / budget - 1
    if abs(miss) > LARGEST_MISMATCH:
        last = changes[-1]
        raise UserError(
            f"{name}: {match} is {1 + miss:.4f} of the baseline's at the nearest {last.key}, {last.after:.7g}, "
            f"and a matched comparison allows {LARGEST_MISMATCH:.0%}; adjust something else"
        )
    return recipe, Adjustment(tuple(changes), match, miss)


def comparable(
    name: str,
    recipe: Recipe,
    group: str,
    baseline: tuple[str, Recipe],
    match: MatchConfig,
    section: str,
    aspect: float | None = None,
) -> tuple[Recipe, Adjustment | None]:
    """Return a point of a section, `adjusted` to its baseline, which has a name, if that is asked of its group.

    Raises UserError if it cannot be trained, or compared with the baseline.
    """
    adjustment = None
    if parts := match.parts_of(group):
        recipe, adjustment = adjusted(name, recipe, baseline[1], match.quantity, parts, aspect)
    check_trainable(recipe, name)
    check_matched({name: recipe}, *baseline, match.quantity, f"resize it, or say match: none under {section}")
    return recipe, adjustment


def _nearest(recipe: Recipe, budget: float, match: Matched, part: Adjust) -> tuple[Recipe, Change]:
    """Return the recipe with the number of one part at which it is nearest to the budget."""
    knob = Knob.of(_template(recipe), part, recipe.seq_len)

    def sized(n_steps: int) -> Recipe:
        return recipe.model_copy(update={"model": knob.at(n_steps)})

    def miss(n_steps: int) -> float:
        return matched_quantity(sized(n_steps), match) / budget - 1

    try:
        asked = abs(matched_quantity(recipe, match) / budget - 1)
    except UserError:  # for example a width that is no multiple of its heads
        asked = math.inf
    nearest = knob.nearest(miss) if asked else knob.start
    value = knob.adjustable.value
    if abs(miss(nearest)) < asked:
        return sized(nearest), Change(knob.path, value, knob.value(nearest))
    return recipe, Change(knob.path, value, value)  # the number itself, which may lie between two steps


def _at_depth(recipe: Recipe, budget: float, match: Matched, aspect: float) -> tuple[Recipe, Change]:
    """Return the recipe with the depth at which a d_model of `aspect` times that is nearest to the budget."""
    template = _template(recipe)
    if not aspect > 0:
        raise UserError(f"aspect: got {aspect!r}; d_model / n_layers must be above 0")

    def miss(model: ModelTemplate) -> float:
        return matched_quantity(recipe.model_copy(update={"model": model}), match) / budget - 1

    n_layers = depth_at_aspect(template, aspect, miss)
    model = checked_copy(template, "model", n_layers=n_layers)
    return recipe.model_copy(update={"model": model}), Change("model.n_layers", template.n_layers, n_layers)


def _template(recipe: Recipe) -> ModelTemplate:
    if not isinstance(recipe.model, ModelTemplate):
        raise UserError("model.layers: every layer is written out; only a model with d_model and n_layers is adjusted")
    if recipe.growth:
        raise UserError("growth: a model that grows in its run is not adjusted; match training_flops by train.steps")
    return recipe.model
