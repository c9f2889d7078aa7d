"""The result of a finished run, which reports and comparisons read."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from widthwise.analysis.dynamic_width import analyse_widths
from widthwise.analysis.virtual_width import analyse_virtual_width
from widthwise.config_io import parse
from widthwise.data.loader import HeldOut
from widthwise.mistakes import counted
from widthwise.model.config import ModelConfig, cost_summary, pflops_days
from widthwise.model.decoder import Decoder
from widthwise.model.dynamic_layers import dynamic_layers
from widthwise.model.residual.slots import SlotsConfig
from widthwise.records.analysis import TokenWidths
from widthwise.records.evaluation import TaskResult
from widthwise.records.record import finite
from widthwise.records.run import DataCounts, GrowthRecord, RunResult, TextResult
from widthwise.training.loop import TrainingLoop
from widthwise.training.state import inherited
from widthwise.training.validation import Validation

SPIKE_NATS = 0.5
"""Least rise of the training loss above an earlier record that causes a warning; batches differ by less."""


def run_result(loop: TrainingLoop, validation: Validation, model: Decoder | None) -> RunResult:
    """Return the content of result.json, from a finished loop, its last validation and its unsharded model.

    model: None if `is_analysed` is False.
    """
    recipe = loop.recipe
    state = loop.state
    records = loop.run.metrics()
    analyses = {} if model is None else model_analyses(model, loop.held_out, validation.token_widths)
    train = [folder.manifest.splits.train for folder in loop.data.folders]
    held_out = [folder.manifest.splits.held_out for folder in loop.data.folders]
    state.wall_seconds = loop.wall_seconds
    spent = inherited(records).until(recipe, recipe.train.steps)
    training = [record for record in records if record["event"] == "train"]
    of_last_model = [record for record in _since(records, ("growth", "grown")) if record["event"] == "train"]
    step_seconds = [record["step_seconds"] for record in of_last_model or training if record.get("step_seconds")]
    optional = {
        "val_losses": validation.losses_by_source,
        "val_texts": {
            name: TextResult(**text.numbers(), window_losses=text.window_losses)
            for name, text in validation.texts.items()
        },
        "val_tasks": {name: TaskResult.model_validate(task.to_data()) for name, task in validation.tasks.items()},
        "expert_loads": validation.expert_loads,
        "val_mtp_losses": validation.mtp_losses,
        "val_mtp_window_losses": validation.mtp_window_losses,
        "doubts": loss_curve_warnings(records),
        "growth": [
            parse(GrowthRecord, {key: value for key, value in record.items() if key != "event"}, "metrics.jsonl")
            for record in records
            if record["event"] == "growth"
        ],
        **analyses,
    }
    memory = [record["memory_bytes"] for record in _since(records, ("grown",)) if record.get("memory_bytes")]
    notes = list(state.notes)
    skipped = [str(record["step"]) for record in records if record["event"] == "skipped"]
    if skipped:
        shown = [*skipped[:5], "..."] if len(skipped) > 5 else skipped
        steps = counted(len(skipped), "step")
        notes.append(f"{steps} without an update, because of the gradient: {', '.join(shown)}")
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
        data=DataCounts(
            n_train_tokens=sum(split.n_tokens for split in train),
            n_train_bytes=sum(split.n_bytes for split in train),
            n_held_out_tokens=sum(split.n_tokens for split in held_out),
            n_held_out_bytes=sum(split.n_bytes for split in held_out),
        ),
        tokens_per_second=recipe.tokens_per_step / statistics.median(step_seconds),
        wall_seconds=state.wall_seconds,
        peak_memory_bytes=max(memory, default=None),
        cost=cost_summary(recipe.final_model, recipe.seq_len),
        training_flops=spent.training_flops,
        pflops_days=pflops_days(spent.training_flops, 1),
        **{key: value for key, value in optional.items() if value},
        notes=notes,
    )


def is_analysed(model: ModelConfig) -> bool:
    """Return True for a model with results of `model_analyses`."""
    return bool(dynamic_layers(model)) or isinstance(model.residual, SlotsConfig)


def model_analyses(model: Decoder, held_out: HeldOut, widths: TokenWidths | None) -> dict[str, Any]:
    """Return `token_widths` and `virtual_width` of a result, or None for a model without it.

    widths: `Validation.token_widths`.
    """
    return {
        "token_widths": None if widths is None else analyse_widths(model, held_out, widths),
        "virtual_width": analyse_virtual_width(model, held_out),
    }


def _since(records: list[dict[str, Any]], events: Sequence[str]) -> list[dict[str, Any]]:
    """Return the records after the last record of these events; without such a record, all."""
    indices = [i for i, record in enumerate(records) if record["event"] in events]
    return records[max(indices, default=-1) + 1 :]


def loss_curve_warnings(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return warnings of a spike of the training loss, and of a validation better than the last one.

    records: of metrics.jsonl.
    """

    def curve(event: str) -> list[tuple[float, int]]:
        points = ((finite(record.get("loss")), record["step"]) for record in records if record["event"] == event)
        return [(loss, step) for loss, step in points if math.isfinite(loss)]

    warnings = []
    lowest = math.inf
    largest_rise = (SPIKE_NATS, 0)
    for loss, step in curve("train"):
        lowest = min(lowest, loss)
        largest_rise = max(largest_rise, (loss - lowest, step))
    rise, spike_step = largest_rise
    if spike_step:
        warnings.append(f"the training loss rose by {rise:.2f} nats, at step {spike_step}")
    validations = curve("validation")
    last = validations[-1][0] if validations else math.inf
    best, step = min(validations, default=(math.inf, 0))
    if best < last:
        warnings.append(f"the last validation, {last:.4f}, is worse than the validation of step {step}, {best:.4f}")
    return warnings
