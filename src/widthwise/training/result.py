"""What a finished run leaves behind for reports and comparisons."""

import statistics
from typing import Any

from widthwise.model.config import cost_summary, pflops_days
from widthwise.recipe.recipe import Recipe
from widthwise.training.compute import DESCENDED, inherited
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

    cost is that of the last model; tokens and training compute are of all steps, those of a run included that this one
    comes from; tokens_per_second is that of the last model's median record, so that neither start-up nor
    compilation nor a hiccup counts.
    """
    cost = cost_summary(recipe.final_model, recipe.seq_len)
    spent = inherited(records).until(recipe, recipe.train.steps)
    step_seconds = [record["step_seconds"] for record in _of_last_model(records)]
    found = {
        "token_widths": token_widths,
        "expert_loads": validation.expert_loads,
        "val_mtp_losses": validation.mtp_losses,
        "virtual_width": virtual_width,
        "growth": [_growth(record) for record in records if record["event"] == "growth"] or None,
    }
    return {
        "status": "finished",
        "name": name,
        "seed": recipe.train.seed,
        "steps": recipe.train.steps,
        "tokens": spent.tokens,
        "train_loss": statistics.fmean(state.recent_losses),
        "loss_window_steps": len(state.recent_losses),
        "val_loss": validation.loss,
        "val_perplexity": validation.perplexity,
        "val_bits_per_byte": validation.bits_per_byte,
        "val_window_losses": validation.window_losses,
        "tokens_per_second": recipe.tokens_per_step / statistics.median(step_seconds),
        "wall_seconds": state.wall_seconds,
        "cost": cost,
        "training_flops": spent.training_flops,
        "pflops_days": pflops_days(spent.training_flops, 1),
        **{key: value for key, value in found.items() if value is not None},
        "notes": state.notes,
    }


def _of_last_model(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records of training since the model last became another; all where there are none."""
    changes = [i for i, record in enumerate(records) if record["event"] in ("growth", *DESCENDED)]
    trained = [[r for r in part if r["event"] == "train"] for part in (records[max(changes, default=0) :], records)]
    return trained[0] or trained[1]


def _growth(record: dict[str, Any]) -> dict[str, Any]:
    """What a run did and cost until its model grew, and what the growth did."""
    return {key: value for key, value in record.items() if key != "event"}
