"""Loss on held-out text."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from widthwise.analysis.dynamic_width import WidthMeter
from widthwise.data.loader import HeldOut
from widthwise.evaluation.local_tasks import TaskScores
from widthwise.kernels.precision import autocast
from widthwise.model.context import Choices
from widthwise.model.decoder import Decoder, Loss
from widthwise.model.eval_mode import evaluating
from widthwise.model.shards import reshard
from widthwise.training.means import ChoiceMeans
from widthwise.training.processes import ALONE, Processes


@dataclass(frozen=True)
class Validation:
    """The results of a validation."""

    loss: float
    """Mean over all target tokens, nats per token."""
    perplexity: float
    bits_per_byte: float | None
    """Bits per byte of the text that the targets stand for, comparable between tokenizers; None where it is empty."""
    window_losses: list[float]
    """Mean loss of every window of seq_len targets, in order: what a paired comparison pairs."""
    token_widths: dict[str, Any] | None
    """The result of `WidthMeter.summary`; None without dynamic-width layers."""
    expert_loads: list[list[float] | None] | None
    """For each layer, every expert's share of the routed tokens; None if no layer routes."""
    losses_by_source: dict[str, float]
    """Mean loss over the windows of each source of a mixture that has some; empty where the data have one source."""
    mtp_losses: list[float] | None
    """Losses of multi-token prediction, depth 1 first, each over the tokens it predicts; None without it."""
    mtp_window_losses: list[list[float]]
    """For each of them, its mean loss in every window; empty without multi-token prediction."""
    texts: Mapping[str, "Validation"] = field(default_factory=dict)
    """Those of the same moment on the other texts of the recipe, by name."""
    tasks: Mapping[str, TaskScores] = field(default_factory=dict)
    """Scores of the same moment on the tasks of the recipe, by name."""

    def record(self) -> dict[str, Any]:
        """The entries of a validation record; width_fraction is the mean_fraction of token_widths, for its curve."""
        record: dict[str, Any] = self.numbers()
        if self.losses_by_source:
            record["val_losses"] = self.losses_by_source
        if self.mtp_losses is not None:
            record["mtp_losses"] = self.mtp_losses
        if self.token_widths is not None:
            record |= {"width_fraction": self.token_widths["mean_fraction"], "token_widths": self.token_widths}
        if self.texts:
            record["val_texts"] = {name: text.numbers() for name, text in self.texts.items()}
        if self.tasks:
            record["val_tasks"] = {name: _values(task) for name, task in self.tasks.items()}
        return record

    def numbers(self) -> dict[str, float | None]:
        """The loss in its three units."""
        return {"loss": self.loss, "perplexity": self.perplexity, "bits_per_byte": self.bits_per_byte}


def _values(task: TaskScores) -> dict[str, float | None]:
    """The metrics of a task without their errors."""
    return {metric: estimate.record()["value"] for metric, estimate in task.metrics().items()}


def validate(model: Decoder, held_out: HeldOut, processes: Processes = ALONE) -> Validation:
    """Loss over the held-out windows. Several processes share the batches, and all get what one would find."""
    byte_lengths = held_out.data.tokenizer.token_byte_lengths()
    window_losses: list[float] = []
    n_bytes = 0
    of_further_heads: list[tuple[Tensor, ...]] = []
    widths, choices = WidthMeter(model), ChoiceMeans()
    with evaluating(model) as device:
        for batches in _rounds(held_out, processes.world_size):
            # A process without a batch of its own takes part with another one's, whose weights it helps to gather.
            own = batches[min(processes.rank, len(batches) - 1)].to(device)
            tokens, targets = own[:, :-1], own[:, 1:]
            documents, positions = held_out.boundaries.documents(tokens), held_out.boundaries.positions(tokens)
            with autocast(device, held_out.precision):
                found = model.loss(tokens, targets, documents=documents, positions=positions)
            for batch, (losses, chosen, of_depths) in zip(batches, processes.gather(_kept(found))):
                n_bytes += int(byte_lengths[batch[:, 1:].numpy()].sum())
                with autocast(device, held_out.precision):
                    widths.add(chosen)
                window_losses += losses.tolist()
                choices.add(chosen, len(batch))
                of_further_heads.append(of_depths)
    reshard(model)
    loss = float(np.mean(window_losses))
    mtp_window_losses: list[list[float]] = [torch.cat(batches).tolist() for batches in zip(*of_further_heads)]
    nats = loss * held_out.seq_len * len(window_losses)
    return Validation(
        loss=loss,
        perplexity=math.exp(loss) if loss < 700 else math.inf,
        bits_per_byte=nats / (math.log(2) * n_bytes) if n_bytes else None,
        window_losses=window_losses,
        losses_by_source=held_out.means_by_source(window_losses),
        token_widths=widths.summary(),
        expert_loads=_lists(choices.by_layer("expert_load")),
        mtp_losses=[float(np.mean(windows)) for windows in mtp_window_losses] or None,
        mtp_window_losses=mtp_window_losses,
    )


def _rounds(held_out: HeldOut, n_processes: int) -> Iterator[list[Tensor]]:
    """The batches, as many at a time as there are processes; in the last round perhaps fewer."""
    batches = held_out.batches()
    while batch_of_each := list(islice(batches, n_processes)):
        yield batch_of_each


def _kept(found: Loss) -> tuple[Tensor, tuple[Choices, ...], tuple[Tensor, ...]]:
    """What one process tells the others of its batch: mean losses of the windows, choices, mean losses of the windows
    by each further head."""
    of_depths = tuple(losses.mean(dim=1, dtype=torch.float64) for losses in found.mtp_losses)
    return found.losses.mean(dim=1, dtype=torch.float64), found.choices, of_depths


def _lists(means: list[Tensor | None]) -> list[list[float] | None] | None:
    lists = [None if mean is None else mean.tolist() for mean in means]
    return lists if any(lists) else None
