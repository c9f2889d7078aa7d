"""What a finished run leaves behind for reports and comparisons."""

import statistics
from typing import Any

from widthwise.model.config import cost_summary
from widthwise.training.config import Recipe
from widthwise.training.state import RunState
from widthwise.training.validation import Validation


def run_result(
    name: str,
    recipe: Recipe,
    state: RunState,
    validation: Validation,
    token_widths: dict[str, Any] | None,
    virtual_width: dict[str, Any] | None,
    records: list[dict[str, Any]],
) -> dict[str, Any]:
    """The content of result.json. records: of the whole run; token_widths and virtual_width: what
    `analyse_widths` and `analyse_virtual_width` found, if anything.

    cost is that of the last model; tokens_per_second is that of the median record, so that neither start-up nor
    compilation nor a hiccup counts.
    """
    cost = cost_summary(recipe.final_model, recipe.seq_len)
    step_seconds = [record["step_seconds"] for record in records if record["event"] == "train"]
    found = {
        "token_widths": token_widths,
        "expert_loads": validation.expert_loads,
        "val_mtp_losses": validation.mtp_losses,
        "virtual_width": virtual_width,
        "growth": [_growth(record, recipe) for record in records if record["event"] == "growth"] or None,
    }
    return {
        "status": "finished",
        "name": name,
        "seed": recipe.train.seed,
        "steps": recipe.train.steps,
        "tokens": recipe.n_tokens,
        "train_loss": statistics.fmean(state.recent_losses),
        "loss_window_steps": len(state.recent_losses),
        "val_loss": validation.loss,
        "val_perplexity": validation.perplexity,
        "val_bits_per_byte": validation.bits_per_byte,
        "val_window_losses": validation.window_losses,
        "tokens_per_second": recipe.tokens_per_step / statistics.median(step_seconds),
        "wall_seconds": state.wall_seconds,
        "cost": cost,
        "training_flops": recipe.training_flops,
        "pflops_days": recipe.pflops_days,
        **{key: value for key, value in found.items() if value is not None},
        "notes": state.notes,
    }


def _growth(record: dict[str, Any], recipe: Recipe) -> dict[str, Any]:
    """What a run did and cost until its model grew, and what the growth did."""
    step = record["step"]
    found = {key: value for key, value in record.items() if key != "event"}
    return {**found, "tokens": step * recipe.tokens_per_step, "training_flops": recipe.training_flops_until(step)}
