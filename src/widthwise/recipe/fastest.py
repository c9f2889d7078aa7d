"""The shape whose training step is predicted to be the shortest, among those of one budget of parameters."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from widthwise.config_io import UserError, parse
from widthwise.merging import merge
from widthwise.recipe.design import ShapeRequest, design_recipe, fitting_d_model
from widthwise.recipe.recipe import Recipe, parse_recipe
from widthwise.recipe.step_time import predicted_step
from widthwise.records.rates import Rates
from widthwise.shape.schedule import SCHEDULES, Schedule
from widthwise.shape.template import ModelTemplate
from widthwise.yaml_io import read_recipe

NARROW, WIDE = tuple(n / 10 for n in range(2, 10)), tuple(n / 10 for n in range(11, 21))
"""Widths at the turn over d_model that are tried, of shapes that are narrow or wide there."""
LARGEST_MISS = 0.005
"""How far the parameters of a candidate may be from the uniform model's, as a fraction: rounding misses by so much."""


@dataclass(frozen=True)
class Candidate:
    """A shape of the budget and what its step is predicted to take."""

    request: ShapeRequest
    seconds: float


def design_fastest(
    base: Path | str, request: ShapeRequest, rates: Rates, overrides: Sequence[str] = (), out: Path | None = None
) -> tuple[str, dict[str, Any]]:
    """As `design_recipe`; layer and width of the turn, where not given, are those that make the step shortest.

    Parameters equal the uniform model's, or the budget. What else a shape changes, as its loss, is not considered. The
    inspection has the predictions under `step_time`. Raises UserError where a step's time is not predicted.
    """
    request = replace(request, match="params")
    data = read_recipe(base, overrides)
    recipe = parse_recipe(data, str(base))
    _check_predictable(recipe)
    if request.budget is not None:
        data = merge(data, {"model": {"d_model": fitting_d_model(recipe, request)}})
        recipe = parse(Recipe, data, "design")
    template = recipe.model
    if not isinstance(template, ModelTemplate):
        raise UserError(f"{base}: needs a base recipe with d_model and n_layers, not one with explicit layers")
    uniform = template.uniform()
    found, refused = [], []
    for each in _requests(request, template.n_layers):
        try:
            found.append(_candidate(each, recipe, data, uniform, rates))
        except UserError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    best = min(found, key=lambda candidate: candidate.seconds)
    text, summary = design_recipe(base, best.request, overrides, out)
    summary["step_time"] = {
        "predicted_seconds": best.seconds,
        "uniform_seconds": _seconds(uniform, recipe, rates),
        "n_candidates": len(found),
        "n_left_out": len(refused),
        "rates": rates.to_data(),
    }
    return text, summary


def _check_predictable(recipe: Recipe) -> None:
    """Raises UserError for a recipe whose steps do more than the prediction knows."""
    known = {
        "optimizer.kind": (recipe.optimizer.kind, "adamw"),
        "train.activation_checkpointing": (recipe.train.activation_checkpointing, "none"),
        "growth": ("events" if recipe.growth else "none", "none"),
    }
    for key, (value, allowed) in known.items():
        if value != allowed:
            raise UserError(f"{key}: got {value}; step times are predicted for {allowed} alone")


def _requests(request: ShapeRequest, n_layers: int) -> Iterator[ShapeRequest]:
    """The request with every layer and width of the turn that it leaves open."""
    schedule = SCHEDULES.get(request.kind)
    if schedule is None:
        raise UserError(f"--match step_time: kind '{request.kind}' has no turn; allowed: {', '.join(SCHEDULES)}")
    for turn_layer in _turn_layers(schedule, request, n_layers):
        widths = WIDE if schedule.ratios[0] >= 1 else NARROW
        for turn_width in widths if request.turn_width is None else (request.turn_width,):
            yield replace(request, turn_layer=turn_layer, turn_width=turn_width)


def _turn_layers(schedule: Schedule, request: ShapeRequest, n_layers: int) -> Sequence[float | None]:
    """As shares of n_layers; None where the kind settles it."""
    if schedule.layer_key is None or request.turn_layer is not None:
        return [request.turn_layer]
    return [layer / n_layers for layer in schedule.turn_layers(n_layers)] or [None]


def _candidate(
    request: ShapeRequest, recipe: Recipe, data: dict[str, Any], uniform: ModelTemplate, rates: Rates
) -> Candidate:
    """Raises UserError where the shape cannot be had, or its widths, rounded, miss the budget."""
    template = parse(Recipe, merge(data, {"model": {"shape": request.shape()}}), "design").model
    assert isinstance(template, ModelTemplate)
    budget = uniform.resolve(recipe.seq_len).cost().params
    miss = template.resolve(recipe.seq_len).cost().params / budget - 1
    if abs(miss) > LARGEST_MISS:
        raise UserError(f"--match step_time: rounded widths miss the budget by {miss:+.1%}; use a smaller --quantum")
    return Candidate(request, _seconds(template, recipe, rates))


def _seconds(template: ModelTemplate, recipe: Recipe, rates: Rates) -> float:
    train = recipe.train
    n_passes = train.n_passes * train.batch_size // train.sequences_per_pass
    model = template.resolve(recipe.seq_len)
    return predicted_step(model, train.batch_size * recipe.seq_len, recipe.seq_len, rates, n_passes).total
