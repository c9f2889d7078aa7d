"""Where the entries along one axis of a grown tensor come from."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class AxisMap:
    """How an axis of n_old entries becomes one of len(index) entries."""

    n_old: int
    index: Tensor
    """int64 (n,): the old entry at each new position, -1 for a new entry. One old entry may occur several times."""
    is_zero: Tensor
    """bool (n,): new entries that must be 0; other new entries are free. False at old entries."""
    average_over: int | None = None
    """If given, new entries are the mean of the old ones in their group of this many consecutive entries."""

    @classmethod
    def same(cls, n: int) -> "AxisMap":
        return cls.of(n, range(n))

    @classmethod
    def of(cls, n_old: int, index: Sequence[int] | Tensor, zero: bool | Tensor = False) -> "AxisMap":
        """zero: whether new entries must be 0, one flag for all or bool (n,)."""
        positions = torch.as_tensor(index, dtype=torch.int64)
        is_zero = zero if isinstance(zero, Tensor) else torch.full(positions.shape, zero)
        return cls(n_old, positions, is_zero & (positions < 0))

    @classmethod
    def appended(cls, n_old: int, n_new: int, zero: bool) -> "AxisMap":
        """New entries after the old ones."""
        assert n_new >= n_old
        return cls.of(n_old, [*range(n_old), *[-1] * (n_new - n_old)], zero)

    @property
    def is_identity(self) -> bool:
        return len(self.index) == self.n_old and bool((self.index == torch.arange(self.n_old)).all())

    @property
    def is_appended(self) -> bool:
        """Whether all old entries come first, in their old order, followed by new ones."""
        places = torch.arange(len(self.index))
        return len(places) >= self.n_old and bool((self.index == torch.where(places < self.n_old, places, -1)).all())

    @property
    def is_new(self) -> Tensor:
        """bool (n,): new entries, and every copy of an old entry but the first."""
        return self._first_of() != torch.arange(len(self.index))

    @property
    def is_free(self) -> Tensor:
        """bool (n,): new entries that may have any value."""
        return (self.index < 0) & ~self.is_zero

    def _first_of(self) -> Tensor:
        """int64 (n,): the first position that holds the same old entry, -1 at new entries."""
        # Shifted by one: index 0 collects the new entries.
        first = torch.full((self.n_old + 1,), len(self.index), dtype=torch.int64)
        positions = torch.arange(len(self.index))
        first.scatter_reduce_(0, self.index + 1, positions, "amin")
        return torch.where(self.index < 0, -1, first[self.index + 1])

    def first_positions(self) -> Tensor:
        """int64 (n_old,): the position of each old entry, of its first copy: the inverse of `index`."""
        positions = torch.nonzero(~self.is_new)[:, 0]
        return positions[self.index[positions].argsort()]


def product(maps: Sequence[AxisMap]) -> AxisMap:
    """The map of several axes flattened into one dimension, outermost first.

    An entry is old if it is old along every axis, and must be 0 if it must be along any.
    """
    if len(maps) == 1:
        return maps[0]
    if not maps:
        return AxisMap.same(1)
    index, is_zero = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.bool)
    for part in maps:
        is_old = (index[:, None] >= 0) & (part.index >= 0)
        index = torch.where(is_old, index[:, None] * part.n_old + part.index, -1).flatten()
        is_zero = (is_zero[:, None] | part.is_zero).flatten()
    averaged = maps[-1].average_over  # only stream coordinates are averaged, and they are always the innermost axis
    return AxisMap(math.prod(part.n_old for part in maps), index, is_zero & (index < 0), averaged)
