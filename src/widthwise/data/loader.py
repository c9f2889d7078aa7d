"""Batches of tokens: those of training as a pure function of the step, those of validation from the start."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Self

import numpy as np

from widthwise.computing import Precision
from widthwise.config_io import UserError
from widthwise.data.boundaries import NO_BOUNDARIES, Boundaries
from widthwise.data.mixture import OpenedData, TokenMixture, windows_of
from widthwise.data.shards import TokenFile
from widthwise.data.tokenizer import Tokenizer
from widthwise.data.windows import Windows

if TYPE_CHECKING:
    from torch import Tensor


class Loader:
    """Training batches; `batch(step)` depends only on its argument, iteration only remembers the step.

    With several processes, rank r of n gets rows r * B/n to (r + 1) * B/n of the same global batch.
    """

    def __init__(
        self,
        tokens: TokenFile | TokenMixture,
        *,
        seq_len: int,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ):
        """`batch_size` is global, in sequences. Raises UserError for sizes that fit neither data nor processes."""
        if batch_size < 1 or batch_size % world_size != 0:
            raise UserError(f"batch_size: got {batch_size}; expected a positive multiple of the {world_size} processes")
        if not 0 <= seed < 2**63:
            raise UserError(f"seed: got {seed}; expected 0 to {2**63 - 1}")
        assert 0 <= rank < world_size
        self._windows = windows_of(tokens, seq_len)
        self._rank, self._n_rows = rank, batch_size // world_size
        self.n_windows = self._windows.n_windows
        self.seq_len, self.batch_size, self.seed = seq_len, batch_size, seed
        self.step = 0

    def batch(self, step: int) -> "Tensor":
        """This process's rows of the batch of a step: int64 (batch_size / world_size, seq_len + 1).

        Inputs are `[:, :-1]`, targets `[:, 1:]`. An epoch may end within a batch; the next one begins in the row after.
        """
        first = step * self.batch_size + self._rank * self._n_rows
        return self._windows.read(np.arange(first, first + self._n_rows, dtype=np.uint64), self.seed)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> "Tensor":
        batch = self.batch(self.step)
        self.step += 1
        return batch

    def state_dict(self) -> dict[str, int]:
        """The step, and what must be equal for it to mean the same.

        `data` identifies a file; of a mixture, every source has its own `NAME.data`, `NAME.n_windows` and
        `NAME.weight`.
        """
        return {
            "step": self.step,
            "seed": self.seed,
            "seq_len": self.seq_len,
            "batch_size": self.batch_size,
            **self._windows.state(),
        }

    def differing(self, state: Mapping[str, int]) -> list[str]:
        """What would have to be equal in a saved state for its step to mean the same here, and is not."""
        own = self.state_dict()
        return [key for key in own | dict(state) if key != "step" and own.get(key) != state.get(key)]

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continues at the saved step, on any number of processes. Raises UserError for other data, sizes or seed."""
        for key in self.differing(state):
            saved, own = state.get(key), self.state_dict().get(key)
            raise UserError(f"resume: the saved {key} is {saved}, this run's is {own}; they must be equal")
        if state.get("step", -1) < 0:
            raise UserError(f"resume: the saved step is {state.get('step')}; must be a whole number from 0")
        self.step = state["step"]


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
    boundaries: Boundaries = NO_BOUNDARIES
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
