"""What a recipe's model is and costs, next to a baseline; nothing is trained."""

from typing import Any

from widthwise.model.config import pflops_days
from widthwise.recipe.recipe import Recipe
from widthwise.shape.breakdown import inspection
from widthwise.shape.template import ModelTemplate


def inspect_recipe(recipe: Recipe, against: Recipe | None = None) -> dict[str, Any]:
    """The inspection of a recipe's model next to that of `against`, by default `ModelTemplate.baseline`.

    A run whose model grows is described by its last model; `growth` tells what every model costs. Raises UserError for
    whatever `train` would refuse in the recipe.
    """
    recipe.check()
    section = recipe.phases[-1].section
    if against is not None:
        baseline = against.final_model
    else:
        baseline = section.baseline().resolve(recipe.seq_len) if isinstance(section, ModelTemplate) else None
    summary = inspection(recipe.final_model, baseline, recipe.seq_len)
    summary["n_tokens"] = recipe.n_tokens
    summary["pflops_days"] = recipe.pflops_days
    if recipe.growth:
        summary["growth"] = _phase_costs(recipe)
    if baseline is not None:
        flops = recipe.train.flops_per_token(baseline, recipe.seq_len)
        compute = pflops_days(flops, recipe.n_tokens) if against is None else against.pflops_days
        summary["baseline"]["pflops_days"] = compute
    return summary


def _phase_costs(recipe: Recipe) -> list[dict[str, Any]]:
    """For each model of a run: the steps before it, its size, and what it adds to tokens and compute."""
    until = recipe.training_flops_until
    return [
        {
            "step": phase.start,
            "n_tokens": phase.n_steps * recipe.tokens_per_step,
            "params": phase.model.cost().params,
            "pflops_days": pflops_days(until(phase.end) - until(phase.start), 1),
        }
        for phase in recipe.phases
    ]
