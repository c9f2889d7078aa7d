"""The origin of the entries along one axis of a grown tensor, and along the axes of heads."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from widthwise.config_io import UserError
from widthwise.model.attention import AttentionConfig


@dataclass(frozen=True)
class AxisMap:
    """An axis of n_old entries that becomes one of len(index) entries."""

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
        """Map by an index. zero: new entries must be 0, one flag for all or bool (n,)."""
        positions = torch.as_tensor(index, dtype=torch.int64)
        is_zero = zero if isinstance(zero, Tensor) else torch.full(positions.shape, zero)
        return cls(n_old, positions, is_zero & (positions < 0))

    @classmethod
    def appended(cls, n_old: int, n_new: int, zero: bool) -> "AxisMap":
        """Append new entries to the old ones."""
        assert n_new >= n_old
        return cls.of(n_old, [*range(n_old), *[-1] * (n_new - n_old)], zero)

    @property
    def is_identity(self) -> bool:
        return len(self.index) == self.n_old and bool((self.index == torch.arange(self.n_old)).all())

    @property
    def is_appended(self) -> bool:
        """True if all old entries come first, in their old order, followed by new ones."""
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
    """Return the map of several axes flattened into one dimension, outermost first.

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


@dataclass(frozen=True)
class AttentionMaps:
    """The axes of one layer's attention, before and after growth."""

    old: AttentionConfig
    new: AttentionConfig
    n_heads: list[int]
    """(new n_heads,): the old query head of each new one, -1 if it is added."""
    n_kv_heads: list[int]
    """(new n_kv_heads,): the same for key-value heads; copies of one head are adjacent."""
    head_dim: list[int]
    """(new head_dim,): the old query/key coordinate of each new one, -1 if it is added."""
    v_head_dim: list[int]
    """(new value_dim,): the same for values."""
    n_kv_copies: int
    """Number of key-value heads that each old one became."""

    @classmethod
    def of(cls, old: AttentionConfig, new: AttentionConfig) -> "AttentionMaps":
        """Map the axes of `old` to those of `new`. Raises UserError if `old` cannot become `new`."""
        n_heads, n_kv_heads, n_copies = _heads(old, new)
        pairs, values = _rotary_pairs(old, new), _appended(old.value_dim, new.value_dim)
        return cls(old, new, n_heads, n_kv_heads, pairs, values, n_copies)


def _appended(n_old: int, n_new: int) -> list[int]:
    if n_new < n_old:
        raise UserError(f"attention.v_head_dim: got {n_new} where there were {n_old}; growth takes nothing away")
    return [*range(n_old), *[-1] * (n_new - n_old)]


def _heads(old: AttentionConfig, new: AttentionConfig) -> tuple[list[int], list[int], int]:
    """Return the maps of query and key-value heads, and the copies of each key-value head.

    A group of query heads either gains heads, or is divided among copies of its key-value head; new groups come last.
    """
    group, new_group = old.n_heads // old.n_kv_heads, new.n_heads // new.n_kv_heads
    n_copies = 1
    if new_group < group:
        if group % new_group:
            raise UserError(
                f"attention.n_kv_heads: got {new.n_kv_heads}; {group} query heads a group cannot be divided into "
                f"groups of {new_group}"
            )
        n_copies, group = group // new_group, new_group
    n_old_groups = old.n_kv_heads * n_copies
    n_added = new.n_kv_heads - n_old_groups
    if n_added < 0 or new.n_heads < old.n_heads:
        raise UserError(
            f"attention: got {new.n_heads} heads and {new.n_kv_heads} key-value heads where there were {old.n_heads} "
            f"and {old.n_kv_heads}; growth takes nothing away"
        )
    heads = [
        g * group + j if g < n_old_groups and j < group else -1 for g in range(new.n_kv_heads) for j in range(new_group)
    ]
    kv_heads = [g // n_copies for g in range(n_old_groups)] + [-1] * n_added
    return heads, kv_heads, n_copies


def _rotary_pairs(old: AttentionConfig, new: AttentionConfig) -> list[int]:
    """Return (new head_dim,): rotary pairs move to their frequencies; without rotation, new coordinates come last.

    A pair is coordinates (i, i + head_dim / 2), which share one frequency.
    """
    if new.head_dim < old.head_dim:
        raise UserError(
            f"attention.head_dim: got {new.head_dim} where there were {old.head_dim}; growth takes nothing away"
        )
    if old.rope is None or new.rope is None:
        if old.rope != new.rope:
            raise UserError("attention.rope_base: rotation cannot begin or end, because the function would change")
        return _appended(old.head_dim, new.head_dim)
    if new.rope == old.rope:
        return [*range(old.head_dim)]
    places = frequency_places(old.rope.pair_frequencies, new.rope.pair_frequencies)
    if places is None:
        raise UserError(
            f"attention.rope_frequencies: the {old.head_dim // 2} frequencies of the old head are not among the new "
            "ones; keep them in rope_frequencies, make head_dim a multiple of the old one, or raise rope_base to "
            f"base^({new.head_dim}/{old.head_dim})"
        )
    index = [-1] * new.head_dim
    for pair, place in enumerate(places):
        index[place], index[place + new.head_dim // 2] = pair, pair + old.head_dim // 2
    return index


TOLERANCE = 1e-13
"""Relative difference at which two frequencies count as equal: angles at position 10,000 then agree to 1e-9."""


def frequency_places(old: Sequence[float], new: Sequence[float]) -> list[int] | None:
    """Return the index of each old frequency among the new ones, each used once; None if any is missing."""
    places: list[int] = []
    for frequency in old:
        found = [
            i for i, other in enumerate(new) if abs(other - frequency) <= TOLERANCE * frequency and i not in places
        ]
        if not found:
            return None
        places.append(found[0])
    return places


ZEROS = {("w_k", "head_dim"), ("w_o", "n_heads"), ("w_o", "v_head_dim")}
"""(matrix, axis) whose new entries are 0. Zero keys leave the scores unchanged whatever the new query coordinates are;
zero columns of w_o ignore new heads and new value coordinates. The other factor is free, so both have a gradient."""


def head_axis(maps: AttentionMaps, matrix: str, axis: str, n_old: int) -> AxisMap:
    """Map one axis of w_q, w_k, w_v or w_o, of its bias, or of a query/key norm. n_old: its old length."""
    return AxisMap.of(n_old, getattr(maps, axis), zero=(matrix, axis) in ZEROS)
