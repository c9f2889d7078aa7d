"""The old part that each part of a grown model comes from: layers, entries along one axis, heads."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from widthwise.mistakes import UserError
from widthwise.model.attention import AttentionConfig
from widthwise.model.config import ModelConfig


def check_not_less(name: str, n_old: int, n_new: int) -> None:
    """Raise UserError if a size becomes smaller."""
    if n_new < n_old:
        raise UserError(f"{name}: got {n_new} where there were {n_old}; growth takes nothing away")


@dataclass(frozen=True)
class Correspondence:
    """The old layer that each new one comes from; None for an added one."""

    layers: tuple[int | None, ...]
    """(new n_layers,)"""

    @classmethod
    def same(cls, model: ModelConfig) -> "Correspondence":
        """Keep all layers and add none."""
        return cls(tuple(range(model.n_layers)))

    def pairs(self) -> list[tuple[int, int]]:
        """List the (old, new) positions of the kept layers."""
        return [(old, new) for new, old in enumerate(self.layers) if old is not None]

    def old_name(self, name: str) -> str | None:
        """Return the parameter's name with the old layer number; None if its layer is added."""
        match = re.fullmatch(r"layers\.(\d+)\.(.*)", name)
        if match is None:
            return name
        old_layer = self.layers[int(match[1])]
        return None if old_layer is None else f"layers.{old_layer}.{match[2]}"


def align(old: ModelConfig, new: ModelConfig, layers: tuple[int | None, ...] | None = None) -> Correspondence:
    """Check `layers`, or if None find the alignment whose layers lose nothing, widen least and are spaced most evenly.

    Raises UserError if `layers` is invalid, or if no alignment makes every layer at least as wide as it was.
    """
    layers = _aligned(old, new) if layers is None else layers
    sources = [layer for layer in layers if layer is not None]
    if len(layers) != new.n_layers or sources != list(range(old.n_layers)):
        given = ", ".join("null" if layer is None else str(layer) for layer in layers)
        raise UserError(
            f"layers: got [{given}]; must list {new.n_layers} entries: the {old.n_layers} old layers in order, and "
            "null for each added one"
        )
    return Correspondence(layers)


def _aligned(old: ModelConfig, new: ModelConfig) -> tuple[int | None, ...]:
    n_old = old.n_layers
    n_new = new.n_layers
    check_not_less("n_layers", n_old, n_new)
    # Dynamic programme. best[i]: the cheapest placing of the first i old layers among the new layers seen so far: the
    # number of refused layers, the sum of the widenings in coordinates, the unevenness of the spacing, and the new
    # position of each layer. i runs downwards, so that best[i - 1] does not use the new layer j yet.
    best: list[tuple[int, float, float, tuple[int, ...]] | None] = [(0, 0.0, 0.0, ()), *[None] * n_old]
    for j, grown in enumerate(new.layers):
        for i in range(min(j + 1, n_old), 0, -1):
            before = best[i - 1]
            layer = old.layers[i - 1]
            if before is None or any(now < was for was, now in zip(layer.widths, grown.widths)):
                continue
            # Growth refuses a layer that would lose heads or hidden units, or have another window or rotation, and most
            # changes of kind.
            loses_heads = layer.attention.n_heads > grown.attention.n_heads
            loses_units = sum(layer.ffn.hidden_widths) > sum(grown.ffn.hidden_widths)
            constants = [(part.attention.window, part.attention.rope_base, type(part.ffn)) for part in (layer, grown)]
            is_refused = loses_heads or loses_units or constants[0] != constants[1]
            n_refused, widening, unevenness, positions = before
            widening += grown.d_model - layer.d_model
            unevenness += abs((j + 0.5) / n_new - (i - 0.5) / n_old)
            placing = (n_refused + is_refused, widening, unevenness, (*positions, j))
            current = best[i]
            if current is None or placing[:3] < current[:3]:
                best[i] = placing
    placed = best[n_old]
    if placed is None:
        raise UserError(
            f"d_model: layers of widths {old.widths} cannot become layers of widths {new.widths} in this order without "
            "a narrower layer"
        )
    places = {place: i for i, place in enumerate(placed[3])}
    return tuple(places.get(j) for j in range(n_new))


@dataclass(frozen=True)
class AxisMap:
    """The map of an axis of n_old entries to one of len(index) entries."""

    n_old: int
    index: Tensor
    """int64 (n,): the old entry at each new position, -1 for a new entry. One old entry may occur several times."""
    is_zero: Tensor
    """bool (n,): new entries that must be 0; other new entries are free. False at old entries."""
    average_over: int | None = None
    """New entries are the mean of the old ones in their group of this many consecutive entries; None: they are not."""

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
    def is_appended(self) -> bool:
        """True if all old entries come first, in their old order, followed by new ones."""
        places = torch.arange(len(self.index))
        return len(places) >= self.n_old and bool((self.index == torch.where(places < self.n_old, places, -1)).all())

    @property
    def is_new(self) -> Tensor:
        """bool (n,): new entries, and every copy of an old entry except the first."""
        # Shifted by one: index 0 collects the new entries.
        first = torch.full((self.n_old + 1,), len(self.index), dtype=torch.int64)
        positions = torch.arange(len(self.index))
        first.scatter_reduce_(0, self.index + 1, positions, "amin")
        return (self.index < 0) | (first[self.index + 1] != positions)

    @property
    def is_free(self) -> Tensor:
        """bool (n,): new entries that may have any value."""
        return (self.index < 0) & ~self.is_zero


def product(maps: Sequence[AxisMap]) -> AxisMap:
    """Return the map of several axes flattened into one dimension, outermost first.

    An entry is old if it is old along every axis, and must be 0 if it must be 0 along any.
    """
    index = torch.zeros(1, dtype=torch.int64)
    is_zero = torch.zeros(1, dtype=torch.bool)
    for part in maps:
        is_old = (index[:, None] >= 0) & (part.index >= 0)
        index = torch.where(is_old, index[:, None] * part.n_old + part.index, -1).flatten()
        is_zero = (is_zero[:, None] | part.is_zero).flatten()
    # Only stream coordinates are averaged, and they are always the innermost axis.
    averaged = maps[-1].average_over if maps else None
    return AxisMap(math.prod(part.n_old for part in maps), index, is_zero & (index < 0), averaged)


@dataclass(frozen=True)
class AttentionMaps:
    """The axes of one layer's attention, before and after growth. Each list has the name of its axis."""

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
        """Map the axes of `old` to the axes of `new`. Raises UserError if `old` cannot become `new`.

        A group of query heads either gains heads, or is divided among copies of its key-value head; new groups come
        last.
        """
        group = old.n_heads // old.n_kv_heads
        new_group = new.n_heads // new.n_kv_heads
        n_copies = 1
        if new_group < group:
            if group % new_group:
                raise UserError(
                    f"attention.n_kv_heads: got {new.n_kv_heads}; {group} query heads a group cannot be divided into "
                    f"groups of {new_group}"
                )
            n_copies = group // new_group
            group = new_group
        n_old_groups = old.n_kv_heads * n_copies
        n_added = new.n_kv_heads - n_old_groups
        if n_added < 0 or new.n_heads < old.n_heads:
            raise UserError(
                f"attention: got {new.n_heads} heads and {new.n_kv_heads} key-value heads where there were "
                f"{old.n_heads} and {old.n_kv_heads}; growth takes nothing away"
            )
        heads = []
        for g in range(new.n_kv_heads):
            n_old_heads = group if g < n_old_groups else 0
            heads += [*range(g * group, g * group + n_old_heads), *[-1] * (new_group - n_old_heads)]
        kv_heads = [g // n_copies for g in range(n_old_groups)] + [-1] * n_added
        pairs = _rotary_pairs(old, new)
        check_not_less("attention.v_head_dim", old.value_dim, new.value_dim)
        values = [*range(old.value_dim), *[-1] * (new.value_dim - old.value_dim)]
        return cls(old, new, heads, kv_heads, pairs, values, n_copies)


def _rotary_pairs(old: AttentionConfig, new: AttentionConfig) -> list[int]:
    """Return (new head_dim,): rotary pairs move to their frequencies; without rotation, new coordinates come last.

    A pair is coordinates (i, i + head_dim / 2), which share one frequency.
    """
    check_not_less("attention.head_dim", old.head_dim, new.head_dim)
    if old.rope is None or new.rope is None:
        if old.rope != new.rope:
            raise UserError("attention.rope_base: rotation cannot be added or removed without changing the function")
        return [*range(old.head_dim), *[-1] * (new.head_dim - old.head_dim)]
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
        index[place] = pair
        index[place + new.head_dim // 2] = pair + old.head_dim // 2
    return index


TOLERANCE = 1e-13
"""Relative difference up to which two frequencies are equal: angles at position 10,000 then agree to 1e-9."""


def frequency_places(old: Sequence[float], new: Sequence[float]) -> list[int] | None:
    """Return the index of each old frequency among the new ones, each used once; None if any is missing."""
    places: list[int] = []
    for frequency in old:
        matches = [i for i, candidate in enumerate(new) if abs(candidate - frequency) <= TOLERANCE * frequency]
        place = next((i for i in matches if i not in places), None)
        if place is None:
            return None
        places.append(place)
    return places
