"""Loss on held-out text."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from widthwise.config_io import UserError
from widthwise.data.loader import count_windows, held_out_batches
from widthwise.data.prepared import PreparedData
from widthwise.model.decoder import Decoder
from widthwise.training.choice_metrics import ChoiceMeans
from widthwise.training.config import Precision
from widthwise.training.step import autocast
from widthwise.training.width_metrics import WidthMeter

SEED = 0
"""Of what a model draws at random while it is evaluated."""


@dataclass(frozen=True)
class Validation:
    """What a validation found."""

    loss: float
    """Mean over all target tokens, nats per token."""
    perplexity: float
    bits_per_byte: float | None
    """Bits per byte of the text that the targets stand for, comparable between tokenizers; None where it is empty."""
    window_losses: list[float]
    """Mean loss of every window of seq_len targets, in order: what a paired comparison pairs."""
    widths: dict[str, Any] | None
    """See `WidthMeter.summary`."""
    expert_loads: list[list[float] | None] | None
    """A layer's shares of the routed choices, one an expert; None where no layer routes."""


def check_validation(data: PreparedData, seq_len: int, max_tokens: int | None) -> None:
    """Raises UserError before a long training rather than after it where `validate` could not work."""
    count_windows(data.held_out, seq_len)
    if max_tokens is not None and max_tokens < seq_len:
        raise UserError(f"train.validation_tokens: got {max_tokens}; must be at least seq_len = {seq_len}")


@contextmanager
def evaluating(model: Decoder) -> Iterator[torch.device]:
    """The model in evaluation mode, without gradients; yields its device.

    Whatever the model draws at random is the same every time, and training draws on afterwards as if nothing had been.
    """
    device, was_training = model.embedding.weight.device, model.training
    devices = [device] if device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices):
        torch.manual_seed(SEED)
        model.eval()
        try:
            yield device
        finally:
            model.train(was_training)


def validate(
    model: Decoder, data: PreparedData, *, seq_len: int, batch_size: int, max_tokens: int | None, precision: Precision
) -> Validation:
    """Loss over the held-out windows from the front, `max_tokens` target tokens at most, all where None."""
    byte_lengths = data.tokenizer.token_byte_lengths()
    window_losses: list[float] = []
    n_bytes = 0
    widths, choices = WidthMeter(model), ChoiceMeans()
    with evaluating(model) as device:
        for batch in held_out_batches(data.held_out, seq_len, batch_size, max_tokens):
            n_bytes += int(byte_lengths[batch[:, 1:].numpy()].sum())
            batch = batch.to(device)
            with autocast(device, precision):
                found = model.loss(batch[:, :-1], batch[:, 1:])
            window_losses += found.losses.mean(dim=1, dtype=torch.float64).tolist()
            widths.add(found.choices)
            choices.add(found.choices, len(batch))
    loss = float(np.mean(window_losses))
    nats = loss * seq_len * len(window_losses)
    return Validation(
        loss=loss,
        perplexity=math.exp(loss) if loss < 700 else math.inf,
        bits_per_byte=nats / (math.log(2) * n_bytes) if n_bytes else None,
        window_losses=window_losses,
        widths=widths.summary(),
        expert_loads=_lists(choices.by_layer("expert_load")),
    )


def _lists(means: list[Tensor | None]) -> list[list[float] | None] | None:
    lists = [None if mean is None else mean.tolist() for mean in means]
    return lists if any(lists) else None
