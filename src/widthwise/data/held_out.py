"""The text that a model is tried on."""

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
    """Tokens of a text that was not prepared, and what made them."""

    held_out: TokenFile
    tokenizer: Tokenizer


@dataclass(frozen=True)
class HeldOut:
    """Windows of the held-out text, from the front, and how they go through a model."""

    data: PreparedData | TokenisedText
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
