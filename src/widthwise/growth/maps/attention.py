"""Which old head and which old coordinate each one of a grown attention comes from."""

from collections.abc import Sequence
from dataclasses import dataclass

from widthwise.config_io import UserError
from widthwise.growth.maps.axis_map import AxisMap
from widthwise.model.attention import AttentionConfig


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
    """How many key-value heads each old one became."""

    @classmethod
    def of(cls, old: AttentionConfig, new: AttentionConfig) -> "AttentionMaps":
        """Raises UserError if `old` cannot become `new`."""
        n_heads, n_kv_heads, n_copies = _heads(old, new)
        pairs, values = _rotary_pairs(old, new), _appended(old.value_dim, new.value_dim)
        return cls(old, new, n_heads, n_kv_heads, pairs, values, n_copies)


def _appended(n_old: int, n_new: int) -> list[int]:
    if n_new < n_old:
        raise UserError(f"attention.v_head_dim: got {n_new} where there were {n_old}; growth takes nothing away")
    return [*range(n_old), *[-1] * (n_new - n_old)]


def _heads(old: AttentionConfig, new: AttentionConfig) -> tuple[list[int], list[int], int]:
    """Maps of query and key-value heads, and the copies of each key-value head.

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
    """(new head_dim,): a rotary pair moves to where its frequency now is; without rotation, new coordinates come last.

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
    """The index of each old frequency among the new ones, each used once; None if any is missing."""
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
    """The map of one axis of w_q, w_k, w_v or w_o, of its bias, or of a query/key norm. n_old: its old length."""
    return AxisMap.of(n_old, getattr(maps, axis), zero=(matrix, axis) in ZEROS)
