"""Loss on held-out text."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from widthwise.config_io import UserError
from widthwise.data.loader import count_windows, held_out_batches
from widthwise.data.prepared import PreparedData
from widthwise.model.decoder import Decoder
from widthwise.training.config import Precision
from widthwise.training.step import autocast


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


def check_validation(data: PreparedData, seq_len: int, max_tokens: int | None) -> None:
    """Raises UserError before a long training rather than after it where `validate` could not work."""
    count_windows(data.held_out, seq_len)
    if max_tokens is not None and max_tokens < seq_len:
        raise UserError(f"train.validation_tokens: got {max_tokens}; must be at least seq_len = {seq_len}")


@torch.no_grad()
def validate(
    model: Decoder, data: PreparedData, *, seq_len: int, batch_size: int, max_tokens: int | None, precision: Precision
) -> Validation:
    """Loss over the held-out windows from the front, `max_tokens` target tokens at most, all where None."""
    device = model.embedding.weight.device
    byte_lengths = data.tokenizer.token_byte_lengths()
    window_losses: list[float] = []
    n_bytes = 0
    for batch in held_out_batches(data.held_out, seq_len, batch_size, max_tokens):
        n_bytes += int(byte_lengths[batch[:, 1:].numpy()].sum())
        batch = batch.to(device)
        with autocast(device, precision):
            losses = model.loss(batch[:, :-1], batch[:, 1:]).losses
        window_losses += losses.mean(dim=1, dtype=torch.float64).tolist()
    loss = float(np.mean(window_losses))
    nats = loss * seq_len * len(window_losses)
    return Validation(
        loss=loss,
        perplexity=math.exp(loss) if loss < 700 else math.inf,
        bits_per_byte=nats / (math.log(2) * n_bytes) if n_bytes else None,
        window_losses=window_losses,
    )
