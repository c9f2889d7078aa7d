"""The initial coefficients of hyper-connections."""

from typing import NamedTuple

import torch
from torch import Tensor


class Pattern(NamedTuple):
    """The initialiser of one site's table [read | carry | write], of n_slots rows. Its first fields are those sizes."""

    n_slots: int
    n_read: int
    n_write: int
    write_init: str
    n_owned_slots: int
    takes_own: bool = False
    """Whether a slot can take one block only, so that all writes are one column."""
    first_read: int = 0
    """The slot from which on slots are read."""

    @property
    def n_coefficients(self) -> int:
        """Columns: what a slot gives to each read block and to each carried slot, and takes from each written block."""
        return self.n_read + self.n_slots + (1 if self.takes_own else self.n_write)

    def __call__(self, table: Tensor, generator: torch.Generator) -> None:
        """Sublayers read slots as they are, and every slot is carried unchanged, as a deviation of 0."""
        rows = table.zero_().view(self.n_slots, self.n_coefficients)
        for block in range(self.n_read):
            rows[(self.first_read + block) % self.n_slots, block] = 1
        for slot in range(self.n_slots):
            block = WRITE_INITS[self.write_init](slot, self.n_write, self.n_owned_slots)
            if block is not None:
                rows[slot, self.n_read + self.n_slots + (0 if self.takes_own else block)] = 1


def _cyclic(slot: int, n_write: int, n_owned_slots: int) -> int | None:
    return slot % n_write


def _slice(slot: int, n_write: int, n_owned_slots: int) -> int | None:
    return slot if slot < n_write else None


def _tail_cyclic(slot: int, n_write: int, n_owned_slots: int) -> int | None:
    return slot % n_write if slot < n_write or slot >= n_owned_slots else None


WRITE_INITS = {"tail_cyclic": _tail_cyclic, "cyclic": _cyclic, "slice": _slice}
"""Slot, blocks written, slots that layers own -> the block that the slot receives before training, if any."""
