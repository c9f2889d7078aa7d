"""Batches of tokens as a pure function of the step.

The training tokens are cut into windows of seq_len + 1 tokens, `seq_len` apart, so that every token but the first
is a target exactly once. Every epoch visits all windows in its own random order, computed and not stored.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Self

import numpy as np
import torch

from widthwise.config_io import UserError
from widthwise.data.shards import TokenFile

N_ROUNDS = 8


def count_windows(tokens: TokenFile, seq_len: int) -> int:
    """How many windows of seq_len + 1 tokens there are. Raises UserError if there are none."""
    if seq_len < 1 or seq_len > tokens.n_tokens - 1:
        raise UserError(
            f"seq_len: got {seq_len}; {tokens.prefix} has {tokens.n_tokens} tokens, so 1 to {tokens.n_tokens - 1}"
        )
    return (tokens.n_tokens - 1) // seq_len


def read_windows(tokens: TokenFile, seq_len: int, windows: np.ndarray) -> torch.Tensor:
    """The windows with these indices: int64 (len(windows), seq_len + 1)."""
    rows = [tokens.tokens(start, start + seq_len + 1) for start in (windows.astype(np.int64) * seq_len).tolist()]
    return torch.from_numpy(np.stack(rows).astype(np.int64))


class Loader:
    """Training batches; `batch(step)` depends only on its argument, iteration only remembers the step.

    With several processes, rank r of n gets rows r * B/n to (r + 1) * B/n of the same global batch.
    """

    def __init__(
        self, tokens: TokenFile, *, seq_len: int, batch_size: int, seed: int, rank: int = 0, world_size: int = 1
    ):
        """`batch_size` is global, in sequences. Raises UserError for sizes that fit neither data nor processes."""
        if batch_size < 1 or batch_size % world_size != 0:
            raise UserError(f"batch_size: got {batch_size}; expected a positive multiple of the {world_size} processes")
        if not 0 <= seed < 2**63:
            raise UserError(f"seed: got {seed}; expected 0 to {2**63 - 1}")
        assert 0 <= rank < world_size
        self._tokens = tokens
        self._rank, self._n_rows = rank, batch_size // world_size
        self.n_windows = count_windows(tokens, seq_len)
        self.seq_len, self.batch_size, self.seed = seq_len, batch_size, seed
        self.step = 0

    def batch(self, step: int) -> torch.Tensor:
        """This process's rows of the batch of a step: int64 (batch_size / world_size, seq_len + 1).

        Inputs are `[:, :-1]`, targets `[:, 1:]`. An epoch may end within a batch; the next one begins in the row after.
        """
        first = step * self.batch_size + self._rank * self._n_rows
        positions = np.arange(first, first + self._n_rows, dtype=np.uint64)
        epochs, positions = np.divmod(positions, np.uint64(self.n_windows))
        return read_windows(self._tokens, self.seq_len, permute(positions, self.n_windows, self.seed, epochs))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> torch.Tensor:
        batch = self.batch(self.step)
        self.step += 1
        return batch

    def state_dict(self) -> dict[str, int]:
        """The step, and what must be equal for it to mean the same; `data` identifies the data."""
        return {
            "step": self.step,
            "seed": self.seed,
            "seq_len": self.seq_len,
            "batch_size": self.batch_size,
            "n_windows": self.n_windows,
            "data": self._tokens.fingerprint,
        }

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continues at the saved step, on any number of processes. Raises UserError for other data, sizes or seed."""
        own = self.state_dict()
        for key in own.keys() - {"step"}:
            if state.get(key) != own[key]:
                raise UserError(
                    f"resume: the saved {key} is {state.get(key)}, this run's is {own[key]}; they must be equal"
                )
        if state.get("step", -1) < 0:
            raise UserError(f"resume: the saved step is {state.get('step')}; must be a whole number from 0")
        self.step = state["step"]


def held_out_batches(
    tokens: TokenFile, seq_len: int, batch_size: int, max_tokens: int | None = None
) -> Iterator[torch.Tensor]:
    """Windows in order for validation: int64 (at most batch_size, seq_len + 1), every target token once.

    The tokens after the last whole window are not used, nor windows beyond `max_tokens` target tokens; the last batch
    may be smaller. Raises UserError if not even one window fits.
    """
    n_windows = count_windows(tokens, seq_len)
    if max_tokens is not None:
        if max_tokens < seq_len:
            raise UserError(f"max_tokens: got {max_tokens}; expected at least one sequence of {seq_len}")
        n_windows = min(n_windows, max_tokens // seq_len)
    for first in range(0, n_windows, batch_size):
        yield read_windows(tokens, seq_len, np.arange(first, min(first + batch_size, n_windows)))


def permute(positions: np.ndarray, n: int, seed: int, epochs: np.ndarray) -> np.ndarray:
    """Where each position goes in the random order of its epoch: uint64, a permutation of 0..n-1 per (seed, epoch).

    A Feistel network over pairs modulo ceil(sqrt(n)), repeated while it leads outside 0..n-1 ("cycle walking", Black
    and Rogaway 2002); the square is hardly larger than n, so few repeat. Needs no memory and no start-up time.
    """
    side = np.uint64(math.isqrt(n - 1) + 1)
    keys = _mix(_mix(np.full_like(positions, seed)) ^ epochs.astype(np.uint64))
    permuted = positions.astype(np.uint64)
    outside = np.ones(len(permuted), dtype=bool)
    while outside.any():
        permuted[outside] = _feistel(permuted[outside], side, keys[outside])
        outside = permuted >= n
    return permuted


def _feistel(values: np.ndarray, side: np.uint64, keys: np.ndarray) -> np.ndarray:
    left, right = np.divmod(values, side)
    for index in range(N_ROUNDS):
        left, right = right, (left + _mix(keys ^ _mix(right * np.uint64(N_ROUNDS) + np.uint64(index))) % side) % side
    return left * side + right


def _mix(values: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014): uint64 -> well-mixed uint64, one to one."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
