"""The windows that a token file is cut into: seq_len + 1 tokens each, `seq_len` apart.

So every token but the first is a target exactly once. In training every epoch of a file visits all of its windows in a
random order of its own, computed and not stored.
"""

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from widthwise.config_io import UserError
from widthwise.data.shards import TokenFile

if TYPE_CHECKING:
    import torch

N_ROUNDS = 8


class Windows(ABC):
    """The windows of one or several files, as a pure function of the row."""

    n_windows: int
    """Rows, from the first, in which no window comes twice."""

    @abstractmethod
    def read(self, rows: np.ndarray, seed: int | None = None) -> "torch.Tensor":
        """The windows of these rows, uint64 (n,): int64 (n, seq_len + 1).

        seed: of the order of training, which goes on from epoch to epoch; None: the order of the files, where a row
        must be less than n_windows.
        """

    @abstractmethod
    def source_of(self, row: int) -> str | None:
        """Name of the source that a row is from; None if there is only one."""

    @abstractmethod
    def state(self) -> dict[str, int]:
        """What must be equal for the rows to be the same."""


class FileWindows(Windows):
    """The windows of one token file."""

    def __init__(self, tokens: TokenFile, seq_len: int):
        """Raises UserError if there are none."""
        if seq_len < 1 or seq_len > tokens.n_tokens - 1:
            raise UserError(
                f"seq_len: got {seq_len}; {tokens.prefix} has {tokens.n_tokens} tokens, so 1 to {tokens.n_tokens - 1}"
            )
        self._tokens, self._seq_len = tokens, seq_len
        self.n_windows = (tokens.n_tokens - 1) // seq_len

    def read(self, rows: np.ndarray, seed: int | None = None) -> "torch.Tensor":
        if seed is not None:
            epochs, positions = np.divmod(rows, np.uint64(self.n_windows))
            rows = permute(positions, self.n_windows, seed, epochs)
        starts = (rows.astype(np.int64) * self._seq_len).tolist()
        windows = [self._tokens.tokens(start, start + self._seq_len + 1) for start in starts]
        import torch

        return torch.from_numpy(np.stack(windows).astype(np.int64))

    def source_of(self, row: int) -> str | None:
        return None

    def state(self) -> dict[str, int]:
        return {"n_windows": self.n_windows, "data": self._tokens.fingerprint}


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
