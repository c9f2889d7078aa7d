"""Held-out text and its windows."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from widthwise.config_io import UserError
from widthwise.data.loader import count_windows, held_out_batches
from widthwise.data.prepared import PreparedData
from widthwise.data.shards import TokenFile
from widthwise.data.tokenizer import Tokenizer
from widthwise.kernels.precision import Precision


@dataclass(frozen=True)
class TokenisedText:
    """Tokens of a text outside a prepared folder, and their tokenizer."""

    held_out: TokenFile
    tokenizer: Tokenizer


@dataclass(frozen=True)
class HeldOut:
    """Windows from the start of the held-out text, and how they are batched."""

    data: PreparedData | TokenisedText
    seq_len: int
    batch_size: int
    """Windows per forward pass."""
    max_tokens: int | None
    """Largest number of target tokens; None: all."""
    precision: Precision

    def check(self) -> None:
        """Raises UserError if the text holds not even one window: before a long training, not after it."""
        count_windows(self.data.held_out, self.seq_len)
        if self.max_tokens is not None and self.max_tokens < self.seq_len:
            got = f"train.validation_tokens: got {self.max_tokens}"
            raise UserError(f"{got}; must be at least seq_len = {self.seq_len}")

    def batches(self, max_tokens: int | None = None) -> Iterator[Tensor]:
        """Integers (at most batch_size, seq_len + 1). max_tokens: a limit below that of `self.max_tokens`."""
        limits = [limit for limit in (self.max_tokens, max_tokens) if limit is not None]
        return held_out_batches(self.data.held_out, self.seq_len, self.batch_size, min(limits, default=None))
