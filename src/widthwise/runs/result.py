"""The result of a finished run, which reports and comparisons read."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from widthwise.analysis.dynamic_width import analyse_widths
from widthwise.analysis.virtual_width import analyse_virtual_width, has_virtual_width
from widthwise.data.loader import HeldOut
from widthwise.data.mixture import OpenedData
from widthwise.model.config import ModelConfig, cost_summary, pflops_days
from widthwise.model.decoder import Decoder
from widthwise.model.dynamic_layers import dynamic_layers
from widthwise.records.analysis import TokenWidths
from widthwise.records.evaluation import TaskResult
from widthwise.records.record import finite
from widthwise.records.run import DataCounts, GrowthRecord, RunResult, TextResult
from widthwise.training.checkpoint_folder import checkpoint_paths, step_of
from widthwise.training.loop import TrainingLoop
from widthwise.training.state import inherited
from widthwise.training.validation import Validation

SPIKE_NATS = 0.5
"""Rise of the training loss above an earlier record that is named; batches differ by less."""


def run_result(loop: TrainingLoop, validation: Validation, model: Decoder | None) -> RunResult:
    """The content of result.json, from a finished loop, its last validation and its whole model, looked into here.

    model: None where `is_analysed` says that there is nothing to look for. cost is that of the last model; tokens and
    training compute are of all steps, those of a run included that this one comes from; tokens_per_second is that of
    the last model's median record, so that neither start-up nor compilation nor a hiccup counts.
    """
    loop.metrics_logger.follow()
    recipe, state, records = loop.recipe, loop.state, loop.run.metrics()
    analyses = {} if model is None else model_analyses(model, loop.held_out, validation.token_widths)
    state.wall_seconds = loop.wall_seconds
    spent = inherited(records).until(recipe, recipe.train.steps)
    of_last_model = _since(records, ("growth", "grown"))
    seconds = [[r["step_seconds"] for r in part if r["event"] == "train"] for part in (of_last_model, records)]
    step_seconds = seconds[0] or seconds[1]
    found = {
        "best_step": loop.retention.best(map(step_of, checkpoint_paths(loop.run.checkpoints))),
        "val_losses": validation.losses_by_source or None,
        "val_texts": {
            name: TextResult(**text.numbers(), window_losses=text.window_losses)
            for name, text in validation.texts.items()
        }
        or None,
        "val_tasks": {name: TaskResult.model_validate(task.to_data()) for name, task in validation.tasks.items()}
        or None,
        "token_widths": analyses.get("token_widths"),
        "expert_loads": validation.expert_loads,
        "val_mtp_losses": validation.mtp_losses,
        "val_mtp_window_losses": validation.mtp_window_losses or None,
        "virtual_width": analyses.get("virtual_width"),
        "doubts": loss_curve_warnings(records) or None,
        "growth": [
            GrowthRecord.model_validate({key: value for key, value in record.items() if key != "event"})
            for record in records
            if record["event"] == "growth"
        ]
        or None,
    }
    return RunResult(
        status="finished",
        name=loop.name,
        seed=recipe.train.seed,
        steps=recipe.train.steps,
        tokens=spent.tokens,
        train_loss=statistics.fmean(state.recent_losses),
        loss_window_steps=len(state.recent_losses),
        val_loss=validation.loss,
        val_perplexity=validation.perplexity,
        val_bits_per_byte=validation.bits_per_byte,
        val_window_losses=validation.window_losses,
        data=_counts(loop.data),
        tokens_per_second=recipe.tokens_per_step / statistics.median(step_seconds),
        wall_seconds=state.wall_seconds,
        peak_memory_bytes=max((record.get("memory_bytes") or 0 for record in _since(records, ("grown",))), default=0)
        or None,
        cost=cost_summary(recipe.final_model, recipe.seq_len),
        training_flops=spent.training_flops,
        pflops_days=pflops_days(spent.training_flops, 1),
        **{key: value for key, value in found.items() if value is not None},
        notes=[*state.notes, *notes_on_spikes(records)],
    )


def _counts(data: OpenedData) -> DataCounts:
    splits = [folder.manifest.splits for folder in data.folders]
    train = [split.train for split in splits]
    held_out = [split.held_out for split in splits]
    return DataCounts(
        n_train_tokens=sum(split.n_tokens for split in train),
        n_train_bytes=sum(split.n_bytes for split in train),
        n_held_out_tokens=sum(split.n_tokens for split in held_out),
        n_held_out_bytes=sum(split.n_bytes for split in held_out),
    )


def is_analysed(model: ModelConfig) -> bool:
    """Return True for a model in which `model_analyses` finds something."""
    return bool(dynamic_layers(model)) or has_virtual_width(model)


def model_analyses(model: Decoder, held_out: HeldOut, widths: TokenWidths | None) -> dict[str, Any]:
    """Return `token_widths` and `virtual_width`, each None for models without it.

    widths: `Validation.token_widths`.
    """
    return {
        "token_widths": None if widths is None else analyse_widths(model, held_out, widths),
        "virtual_width": analyse_virtual_width(model, held_out),
    }


def _since(records: list[dict[str, Any]], events: Sequence[str]) -> list[dict[str, Any]]:
    """The records after the last of some events; all records if there was none."""
    found = [i for i, record in enumerate(records) if record["event"] in events]
    return records[max(found, default=-1) + 1 :]


def notes_on_spikes(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describe the skipped steps of a run, for its result. records: of metrics.jsonl."""
    notes, steps = [], [record["step"] for record in records if record["event"] == "skipped"]
    if steps:
        first = ", ".join(map(str, steps[:5])) + (", ..." if len(steps) > 5 else "")
        notes.append(f"{len(steps)} step{'s' * (len(steps) > 1)} without an update, because of the gradient: {first}")
    return notes


def loss_curve_warnings(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Warn of a loss that is not the best of its run: a spike of the training loss, a better validation before.

    records: of metrics.jsonl.
    """

    def curve(event: str) -> list[tuple[float, int]]:
        found = ((finite(record["loss"]), record["step"]) for record in records if record["event"] == event)
        return [(loss, step) for loss, step in found if math.isfinite(loss)]

    warnings, lowest, highest = [], math.inf, (SPIKE_NATS, 0)
    for loss, step in curve("train"):
        lowest = min(lowest, loss)
        highest = max(highest, (loss - lowest, step))
    if highest[1]:
        warnings.append(f"the training loss rose by {highest[0]:.2f} nats, at step {highest[1]}")
    validations = curve("validation")
    if validations and (best := min(validations))[0] < validations[-1][0]:
        (last, _), (loss, step) = validations[-1], best
        warnings.append(f"the last validation, {last:.4f}, is worse than that of step {step}, {loss:.4f}")
    return warnings
