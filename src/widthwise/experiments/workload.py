"""The planned work of an experiment: what its variants or points cost, before anything is trained."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from widthwise.experiments.adjusting import Adjustment
from widthwise.experiments.matching import Matched, matched_ratio
from widthwise.model.config import cost_summary
from widthwise.recipe.recipe import Recipe


def counted_work(
    recipes: Mapping[str, Recipe],
    n_seeds: int,
    baseline: str | None = None,
    match: Matched = "none",
    adjustments: Mapping[str, Adjustment] | None = None,
    n_points: int | None = None,
) -> dict[str, Any]:
    """The costs of every recipe over all its seeds, and the work in all, as plain data.

    baseline: the one that the others must match; None: there is none, and nothing is said to be missed. adjustments:
    recipe -> what became of it. n_points: how many are trained, where more follow that are not known yet, which count
    as the mean of the known ones.
    """
    adjustments = adjustments or {}
    n_points = len(recipes) if n_points is None else n_points
    reference = None if baseline is None or match == "none" else recipes[baseline]
    rows = [
        {
            **_costs(name, recipe, n_seeds),
            "miss": None if reference is None or name == baseline else matched_ratio(recipe, reference, match) - 1,
            "changes": [asdict(each) for each in adjustments[name].changes] if name in adjustments else [],
        }
        for name, recipe in recipes.items()
    ]
    mean_flops = sum(row["training_flops"] for row in rows) / len(rows)
    return {
        "n_points": n_points,
        "n_seeds": n_seeds,
        "n_runs": n_points * n_seeds,
        "training_flops": mean_flops * n_points,
        "baseline": baseline,
        "match": None if reference is None else match,
        "points": rows,
    }


def _costs(name: str, recipe: Recipe, n_seeds: int) -> dict[str, Any]:
    """Steps of one run, everything else over all seeds."""
    return {
        "name": name,
        "params": cost_summary(recipe.final_model, recipe.seq_len)["params"]["total"],
        "steps": recipe.train.steps,
        "tokens": n_seeds * recipe.n_tokens,
        "training_flops": n_seeds * recipe.training_flops,
    }
