"""Sizes and costs of a model, layer by layer and relative to a baseline, without training."""

from typing import Any

from widthwise.model.config import ModelConfig, cost_summary, pflops_days
from widthwise.model.cost import Cost
from widthwise.model.dynamic_layers import dynamic_layers
from widthwise.recipe.recipe import Recipe
from widthwise.records.cost import CostSummary
from widthwise.records.quantities import MODEL_COSTS
from widthwise.shape.kinds import SolvedShape
from widthwise.shape.template import ModelTemplate


def layer_rows(config: ModelConfig, seq_len: int) -> list[dict[str, Any]]:
    """Return the sizes and costs of each layer, numbered from 1; FLOPs and bytes are per token.

    `hidden_widths` has the hidden channels of every map of the feed-forward, in order.
    """
    rows = []
    has_windows = any(layer.attention.window is not None for layer in config.layers)
    for number, (layer, parts) in enumerate(zip(config.layers, config.layer_costs(), strict=True), start=1):
        cost = sum(parts.values(), Cost())
        attention = layer.attention
        row = {
            "layer": number,
            "d_model": layer.d_model,
            "n_heads": attention.n_heads,
            "n_kv_heads": attention.n_kv_heads,
            "head_dim": attention.head_dim,
            "hidden_widths": layer.ffn.hidden_widths,
            "params": cost.params,
            "forward_flops": cost.forward_flops(seq_len),
            "kv_bytes": cost.kv_bytes(seq_len),
            "activation_bytes": cost.activation_bytes(),
        }
        if has_windows:
            row["window"] = attention.window
        rows.append(row)
    return rows


def ratios(cost: CostSummary, baseline: CostSummary) -> dict[str, float]:
    """Return each compared cost of a model divided by the baseline's."""
    return {
        name: quantity.of_cost(cost) / quantity.of_cost(baseline)
        for name, quantity in MODEL_COSTS.items()
        if quantity.has_ratio
    }


def inspect_recipe(recipe: Recipe, against: Recipe | None = None) -> dict[str, Any]:
    """Return the output of `inspect --json`: costs, a row per layer, and the costs of a baseline with ratios to it.

    The baseline is the model of `against`, by default `ModelTemplate.baseline`. If the model grows, costs are the last
    model's, and `growth` has the first step, tokens, size and compute of each phase. Raises UserError for a recipe that
    `train` refuses.
    """
    recipe.check()
    section = recipe.phases[-1].section
    cost = cost_summary(recipe.final_model, recipe.seq_len)
    summary = {**cost.to_data(), "layers": layer_rows(recipe.final_model, recipe.seq_len)}
    baseline = None
    if against is not None:
        baseline = against.final_model
    elif isinstance(section, ModelTemplate):
        baseline = section.baseline().resolve(recipe.seq_len)
    matched: dict[str, Any] = {}
    if baseline is not None:
        baseline_cost = cost_summary(baseline, recipe.seq_len)
        flops = recipe.train.flops_per_token(baseline, recipe.seq_len)
        compute = pflops_days(flops, recipe.n_tokens) if against is None else against.pflops_days
        summary["baseline"] = {**baseline_cost.to_data(), "pflops_days": compute}
        summary["ratio"] = ratios(cost, baseline_cost)
        if against is None and isinstance(section, ModelTemplate) and isinstance(section.shape, SolvedShape):
            match = section.shape.match
            quantity, target = (MODEL_COSTS[match].of_cost(costs) for costs in (cost, baseline_cost))
            matched["matched"] = {"match": match, "asked": target, "miss": quantity / target - 1}
    summary |= {"n_tokens": recipe.n_tokens, "pflops_days": recipe.pflops_days, **matched}
    if dynamic_layers(recipe.final_model):
        summary["chosen_flops"] = _chosen_flops(recipe)
    if recipe.growth:
        flops_until = recipe.training_flops_until
        summary["growth"] = [
            {
                "step": phase.start,
                "n_tokens": (phase.end - phase.start) * recipe.tokens_per_step,
                "params": phase.model.cost().params,
                "pflops_days": pflops_days(flops_until(phase.end) - flops_until(phase.start), 1),
            }
            for phase in recipe.phases
        ]
    return summary


def _chosen_flops(recipe: Recipe) -> dict[str, float]:
    """Return the forward FLOPs per token of the final model, including the head, at different hidden widths.

    Keys: `narrowest`, `target` if there is a width budget, and `full`. Widths are not rounded to whole units.
    """
    budget = recipe.train.width_budget
    full = recipe.final_model.inference_cost().forward_flops(recipe.seq_len)
    layers = dynamic_layers(recipe.final_model)
    dynamic = sum(layer.full_flops for layer in layers)
    flops = {"narrowest": full - dynamic + sum(layer.narrowest * layer.full_flops for layer in layers)}
    if budget is not None:
        flops["target"] = full - dynamic * (1 - budget.target)
    return {**flops, "full": full}
