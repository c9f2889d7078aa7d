"""Batches of tokens as a pure function of the step."""

from collections.abc import Mapping
from typing import Self

import numpy as np
import torch

from widthwise.config_io import UserError
from widthwise.data.shards import TokenFile
from widthwise.data.windows import TokenMixture, windows_of


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

    def batch(self, step: int) -> torch.Tensor:
        """This process's rows of the batch of a step: int64 (batch_size / world_size, seq_len + 1).

        Inputs are `[:, :-1]`, targets `[:, 1:]`. An epoch may end within a batch; the next one begins in the row after.
        """
        first = step * self.batch_size + self._rank * self._n_rows
        return self._windows.read(np.arange(first, first + self._n_rows, dtype=np.uint64), self.seed)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> torch.Tensor:
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
