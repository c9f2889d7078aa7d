"""Held-out text and its windows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from widthwise.config_io import UserError
from widthwise.data.boundaries import UNTOLD, Boundaries
from widthwise.data.mixture import OpenedData
from widthwise.data.shards import TokenFile
from widthwise.data.tokenizer import Tokenizer
from widthwise.data.windows import Windows, windows_of

if TYPE_CHECKING:
    from torch import Tensor
from widthwise.computing import Precision


@dataclass(frozen=True)
class TokenisedText:
    """Tokens of a text outside a prepared folder, and their tokenizer."""

    held_out: TokenFile
    tokenizer: Tokenizer


@dataclass(frozen=True)
class HeldOut:
    """Windows from the start of the held-out text, and how they are batched.

    Those of a mixture come in its proportions, each source's from its start, until the next is of a source that has
    none left.
    """

    data: OpenedData | TokenisedText
    seq_len: int
    batch_size: int
    """Windows per forward pass."""
    max_tokens: int | None
    """Largest number of target tokens; None: all."""
    precision: Precision
    boundaries: Boundaries = UNTOLD
    """What the model is told of the documents in a window."""

    def check(self) -> None:
        """Raises UserError if the text holds not even one window: before a long training, not after it."""
        assert self.n_windows > 0

    @property
    def n_windows(self) -> int:
        """Windows of one pass over all. Raises UserError if there is not even one."""
        n_windows = self._windows.n_windows
        if self.max_tokens is None:
            return n_windows
        if self.max_tokens < self.seq_len:
            got = f"train.validation_tokens: got {self.max_tokens}"
            raise UserError(f"{got}; must be at least seq_len = {self.seq_len}")
        return min(n_windows, self.max_tokens // self.seq_len)

    @property
    def sources(self) -> list[str]:
        """The source of each window of a mixture, in order; empty where there is only one."""
        return [name for row in range(self.n_windows) if (name := self._windows.source_of(row)) is not None]

    def means_by_source(self, values: Sequence[float]) -> dict[str, float]:
        """The mean over the windows of each source that has some; empty where there is only one. values: per window."""
        found: dict[str, list[float]] = {}
        for name, value in zip(self.sources, values):
            found.setdefault(name, []).append(value)
        return {name: fmean(found[name]) for name in sorted(found)}

    def batches(self, max_tokens: int | None = None) -> Iterator["Tensor"]:
        """Integers (at most batch_size, seq_len + 1). max_tokens: a limit below that of `self.max_tokens`."""
        n_windows = self.n_windows if max_tokens is None else min(self.n_windows, max_tokens // self.seq_len)
        for first in range(0, n_windows, self.batch_size):
            rows = np.arange(first, min(first + self.batch_size, n_windows), dtype=np.uint64)
            yield self._windows.read(rows)

    @cached_property
    def _windows(self) -> Windows:
        return windows_of(self.data.held_out, self.seq_len)
