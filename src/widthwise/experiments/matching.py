"""Rules for a fair comparison: settings that recipes must share, and costs that must be equal."""

from collections.abc import Iterable, Mapping
from typing import Literal

from widthwise.config_io import UserError
from widthwise.model.config import cost_summary
from widthwise.recipe.recipe import Recipe
from widthwise.records.quantities import OF_MODELS
from widthwise.shape.kinds import Match

Matched = Literal[Match, "training_flops", "none"]
"""The quantity that recipes can be required to match. training_flops: the compute of the whole run, so that they may
train for different numbers of steps; if a model grows, each phase counts with its own steps."""

LARGEST_MISMATCH = 0.01
"""How far the matched quantity of a variant may be from the baseline's, as a fraction."""

HELD_OUT = {
    "data": lambda recipe: recipe.data,
    "seq_len": lambda recipe: recipe.seq_len,
    "validation": lambda recipe: recipe.validation,
    "train.validation_tokens": lambda recipe: recipe.train.validation_tokens,
}
"""Settings that determine the held-out windows, and what else is read and asked."""

SHARED = {
    **HELD_OUT,
    "train.steps": lambda recipe: recipe.train.steps,
    "train.batch_size": lambda recipe: recipe.train.batch_size,
    "train.precision": lambda recipe: recipe.train.precision,
}
"""Settings that all runs of a comparison share."""


def check_trainable(recipe: Recipe, name: str) -> None:
    """Raises UserError, with the name of the recipe, if its parts do not fit together."""
    try:
        recipe.check()
    except UserError as error:
        raise UserError(f"{name}: {error}") from None


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
    values = {what: (SHARED[what](recipe), SHARED[what](other)) for what in shared}
    return [
        f"{name}: {what} is {own}, but {expected} in {other_name}"
        for what, (own, expected) in values.items()
        if own != expected
    ]


def matched_ratio(recipe: Recipe, baseline: Recipe, match: Matched) -> float:
    """The matched quantity of the final model over the baseline's; 1 if nothing is matched."""
    return 1.0 if match == "none" else matched_quantity(recipe, match) / matched_quantity(baseline, match)


def matched_quantity(recipe: Recipe, match: Matched) -> float:
    """A cost of the final model, or the training FLOPs of the whole run. match: not "none"."""
    if match == "training_flops":
        return recipe.training_flops
    return OF_MODELS[match].of_cost(cost_summary(recipe.final_model, recipe.seq_len))


def _steps_to_match(recipe: Recipe, ratio: float, match: Matched) -> str:
    if match != "training_flops":
        return ""
    per_step = recipe.training_flops - recipe.training_flops_until(recipe.train.steps - 1)
    n_steps = recipe.train.steps + round((1 / ratio - 1) * recipe.training_flops / per_step)
    return f" (train.steps: {n_steps} would match)"
