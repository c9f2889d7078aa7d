"""The text that a model is tried on, and the state in which it is tried."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from widthwise.config_io import UserError
from widthwise.data.loader import count_windows, held_out_batches
from widthwise.data.prepared import PreparedData
from widthwise.model.decoder import Decoder
from widthwise.training.precision import Precision

SEED = 0
"""Of what a model draws at random while it is evaluated."""


@dataclass(frozen=True)
class HeldOut:
    """Windows of the held-out text, from the front, and how they go through a model."""

    data: PreparedData
    seq_len: int
    batch_size: int
    """Windows per forward pass."""
    max_tokens: int | None
    """Target tokens at most; None: all."""
    precision: Precision

    def check(self) -> None:
        """Raises UserError before a long training rather than after it where there is not one window."""
        count_windows(self.data.held_out, self.seq_len)
        if self.max_tokens is not None and self.max_tokens < self.seq_len:
            got = f"train.validation_tokens: got {self.max_tokens}"
            raise UserError(f"{got}; must be at least seq_len = {self.seq_len}")

    def batches(self, max_tokens: int | None = None) -> Iterator[Tensor]:
        """Integers (at most batch_size, seq_len + 1). max_tokens: a limit below that of `self.max_tokens`."""
        limits = [limit for limit in (self.max_tokens, max_tokens) if limit is not None]
        return held_out_batches(self.data.held_out, self.seq_len, self.batch_size, min(limits, default=None))


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
