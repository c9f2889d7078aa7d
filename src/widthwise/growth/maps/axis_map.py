"""Where the entries along one axis of a grown tensor come from."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class AxisMap:
    """Of an axis of n_old entries that becomes len(index) entries."""

    n_old: int
    index: Tensor
    """integers (n,): the old entry that stands here, -1 where there was none. Several may stand for one old entry."""
    is_zero: Tensor
    """bool (n,): new entries that must be 0; the others are free. False at old entries."""
    average_over: int | None = None
    """New entries are the mean of the old ones beside them, within groups of so many consecutive entries."""

    @classmethod
    def same(cls, n: int) -> "AxisMap":
        return cls.of(n, range(n))

    @classmethod
    def of(cls, n_old: int, index: Sequence[int] | Tensor, zero: bool | Tensor = False) -> "AxisMap":
        """zero: whether new entries must be 0, all alike or each."""
        positions = torch.as_tensor(index, dtype=torch.int64)
        is_zero = zero if isinstance(zero, Tensor) else torch.full(positions.shape, zero)
        return cls(n_old, positions, is_zero & (positions < 0))

    @classmethod
    def appended(cls, n_old: int, n_new: int, zero: bool) -> "AxisMap":
        """New entries behind the old ones."""
        assert n_new >= n_old
        return cls.of(n_old, [*range(n_old), *[-1] * (n_new - n_old)], zero)

    @property
    def is_identity(self) -> bool:
        return len(self.index) == self.n_old and bool((self.index == torch.arange(self.n_old)).all())

    @property
    def is_appended(self) -> bool:
        """Whether all old entries stand in front, in their order, and new ones behind them."""
        places = torch.arange(len(self.index))
        return len(places) >= self.n_old and bool((self.index == torch.where(places < self.n_old, places, -1)).all())

    @property
    def is_new(self) -> Tensor:
        """bool (n,): entries that are no old entry, or a second copy of one."""
        return self._first_of() != torch.arange(len(self.index))

    @property
    def is_free(self) -> Tensor:
        """bool (n,): new entries of any value."""
        return (self.index < 0) & ~self.is_zero

    def _first_of(self) -> Tensor:
        """(n,): the first position of the same old entry, -1 where there is none."""
        first = torch.full((self.n_old + 1,), len(self.index), dtype=torch.int64)
        positions = torch.arange(len(self.index))
        first.scatter_reduce_(0, self.index + 1, positions, "amin")
        return torch.where(self.index < 0, -1, first[self.index + 1])

    def first_positions(self) -> Tensor:
        """(n_old,): where each old entry now stands, its first copy: the inverse."""
        positions = torch.nonzero(~self.is_new)[:, 0]
        return positions[self.index[positions].argsort()]


def product(maps: Sequence[AxisMap]) -> AxisMap:
    """Of axes flattened into one dimension, outermost first.

    An entry is old where it is so along every axis, and must be 0 where it must along one.
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
    averaged = maps[-1].average_over  # only the stream is averaged, and no axis lies inside it
    return AxisMap(math.prod(part.n_old for part in maps), index, is_zero & (index < 0), averaged)
