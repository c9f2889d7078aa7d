"""The plan of a tensor, from the names of its axes.

One rule covers every component: for new coordinates, either the weights that write them are 0 and those that read them
are free, or the reverse. New entries then change nothing, yet they learn: the factor that is 0 has a gradient at
once, and the other as soon as that has moved. A component whose axes are named below needs no other code;
the coefficients of hyper-connections, at the end, have separate rules.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from widthwise.config_io import UserError
from widthwise.growth.correspondence import AttentionMaps, AxisMap, check_not_less, product
from widthwise.growth.stream import StreamMap
from widthwise.growth.tensor_plan import (
    DerivedRows,
    Draw,
    FreshEntries,
    InitialValues,
    Mean,
    MirroredNoise,
    OrthogonalCopies,
    TensorPlan,
)
from widthwise.model.attention_module import Attention
from widthwise.model.axes import Control, Experts, LayerNorm, Linear, Norm, Table, Vector, Weight
from widthwise.model.cost import Axes
from widthwise.model.ffn.interface import FFNConfig
from widthwise.model.ffn.moe import MoEConfig
from widthwise.model.ffn.moe_module import MoE
from widthwise.model.residual.hyper_connections_module import HyperConnection

ZEROS = {("w_k", "head_dim"), ("w_o", "n_heads"), ("w_o", "v_head_dim")}
"""(matrix, axis) whose new entries are 0. Zero keys leave the scores unchanged for any new query coordinates;
zero columns of w_o ignore new heads and new value coordinates. The other factor is free, so both have a gradient."""


@dataclass(frozen=True)
class Owner:
    """The module that holds a parameter, before and after growth, and the modules around it."""

    name: str
    """The module's name in the grown model."""
    old: Weight
    new: Weight
    parent: nn.Module
    """The module around it in the grown model; for a bias, the one around its matrix."""
    old_parent: nn.Module
    ffn: FFNConfig | None = None
    """Config of the feed-forward around it in the grown model, if any."""

    @property
    def leaf(self) -> str:
        """The parent's name for it, such as w_q, for its bias too."""
        return self.name.removesuffix(".bias").rpartition(".")[2]

    @cached_property
    def attention(self) -> AttentionMaps | None:
        """Head maps if the module is part of attention. Raises UserError if the attention cannot grow this way."""
        if isinstance(self.parent, Attention) and isinstance(self.old_parent, Attention):
            return AttentionMaps.of(self.old_parent.config, self.parent.config)
        return None


def weight_plan(source: str, owner: Owner, stream: StreamMap) -> TensorPlan:
    """Plan a parameter that the old model has as `source`. Raises UserError if it cannot become the new one."""
    old, new = owner.old, owner.new
    # The divisors of query/key norms already count the copies that `OrthogonalCopies` makes.
    is_norm = isinstance(old, Norm) and isinstance(new, Norm) and not isinstance(owner.parent, Attention)
    if is_norm and old.norm_dim != new.norm_dim:
        raise UserError(
            f"{owner.name}: would divide by {new.norm_dim} where it divides by {old.norm_dim}; widths that a sublayer "
            "reads and writes must grow alike"
        )
    if isinstance(owner.parent, MoE) and isinstance(owner.old_parent, MoE):
        cut = _split(source, owner, owner.parent.config, owner.old_parent.config, stream)
        if cut is not None:
            return cut
    maps, fresh = _dimensions(owner, stream), Mean() if isinstance(new, Norm) else FreshEntries()
    n_copies, copies_differ = _copies(owner)
    return TensorPlan(source, maps, fresh, _derived(owner), n_copies=n_copies, copies_differ=copies_differ)


def _dimensions(owner: Owner, stream: StreamMap) -> tuple[AxisMap, ...]:
    """Return the maps of rows and columns, or of the entries of a vector."""

    def flattened(old: Axes, new: Axes) -> AxisMap:
        if isinstance(owner.parent, MoE) and not isinstance(owner.old_parent, MoE):
            # A dense matrix counts as a mixture of one expert.
            dense = {"d_expert" if name == "d_ff" else name: n for name, n in old.items()}
            old = {name: dense.get(name, 1) for name in new}
        if isinstance(owner.new, Linear) and "d_widened" in new:
            return _widened(owner, stream)
        role = "gain" if isinstance(owner.new, Norm) else "out" if new is owner.new.out_axes else "in"
        hidden = () if owner.ffn is None else owner.ffn.hidden_axes.values()
        axes = [GrownAxis(owner, name, old[name], new[name], role, stream) for name in new]
        return product(
            [(_hidden_units if axis.name in hidden else RULES.get(axis.name, _unchanged))(axis) for axis in axes]
        )

    return tuple(flattened(*sizes) for sizes in zip(owner.old.dimensions, owner.new.dimensions, strict=True))


@dataclass(frozen=True)
class GrownAxis:
    """One axis of a parameter, before and after growth."""

    owner: Owner
    name: str
    n_old: int
    n_new: int
    role: str
    """The tensor writes the axis (`out`), reads it (`in`), or multiplies it elementwise (`gain`)."""
    stream: StreamMap


def _head_entries(axis: GrownAxis) -> AxisMap:
    maps = axis.owner.attention
    if maps is None:
        return _unchanged(axis)
    return AxisMap.of(axis.n_old, getattr(maps, axis.name), zero=(axis.owner.leaf, axis.name) in ZEROS)


def _hidden_units(axis: GrownAxis) -> AxisMap:
    assert axis.owner.ffn is not None
    check_not_less(axis.owner.name, axis.n_old, axis.n_new)
    return AxisMap.of(axis.n_old, axis.owner.ffn.units_before(axis.n_old, axis.n_new), zero=axis.role == "in")


def _coordinates(axis: GrownAxis) -> AxisMap:
    is_table = isinstance(axis.owner.new, Table)
    return _written_or_read(axis, axis.stream, axis.stream.table if is_table else axis.stream.written)


def _written_or_read(axis: GrownAxis, stream: StreamMap, write: Callable[[int, int], AxisMap]) -> AxisMap:
    """Map coordinates of a stream; new ones hold 0, so that gains are free there. Biases of a LayerNorm must be 0."""
    if axis.role == "in":
        return stream.read(axis.n_old, axis.n_new)
    owner, written = axis.owner, write(axis.n_old, axis.n_new)
    is_norm_bias = owner.name.endswith(".bias") and isinstance(getattr(owner.parent, owner.leaf), LayerNorm)
    return AxisMap.of(axis.n_old, written.index, is_norm_bias) if axis.role == "gain" or is_norm_bias else written


def _experts(axis: GrownAxis) -> AxisMap:
    """Copies of an old expert are adjacent."""
    n_old, n_new = axis.n_old, axis.n_new
    return AxisMap.of(n_old, [i * n_old // n_new for i in range(n_new)]) if n_new >= n_old else _unchanged(axis)


def _appended(axis: GrownAxis, zero: bool) -> AxisMap:
    is_longer = axis.n_new >= axis.n_old
    return AxisMap.appended(axis.n_old, axis.n_new, zero=zero) if is_longer else _unchanged(axis)


def _unchanged(axis: GrownAxis) -> AxisMap:
    """Raises UserError if the size changes."""
    if axis.n_old != axis.n_new:
        raise UserError(
            f"{axis.owner.name}: axis {axis.name} cannot grow from {axis.n_old} to {axis.n_new} without changing the "
            "function"
        )
    return AxisMap.same(axis.n_old)


RULES: dict[str, Callable[[GrownAxis], AxisMap]] = {
    **dict.fromkeys(("n_heads", "n_kv_heads", "head_dim", "v_head_dim"), _head_entries),
    "d_model": _coordinates,
    "stream_width": lambda axis: _written_or_read(axis, axis.stream, axis.stream.table),
    "slot_width": lambda axis: _written_or_read(axis, axis.stream.slot, axis.stream.slot.written),
    "n_slots": lambda axis: _appended(axis, zero=axis.role == "in"),
    "n_experts": _experts,
    "n_positions": lambda axis: _appended(axis, zero=False),
}
"""Axis -> rule. An axis without a rule keeps its size, unless the feed-forward names it among its `hidden_axes`."""


def _widened(owner: Owner, stream: StreamMap) -> AxisMap:
    """Map the output rows of a projected widening, coordinates after the prefix: old ones stay, fresh ones are 0.

    `index` counts from the start of the stream, so that the end of the old prefix is subtracted.
    """
    ends = [weight.in_axes["d_model"] for weight in (owner.old, owner.new)]
    sizes = [weight.out_axes["d_widened"] for weight in (owner.old, owner.new)]
    index = stream.prefix(ends[0] + sizes[0], ends[1] + sizes[1])[ends[1] :]
    index = torch.where(index >= 0, index - ends[0], index)
    if (index < -1).any() or ((index >= 0) & (index >= sizes[0])).any() or int((index >= 0).sum()) != sizes[0]:
        raise UserError(
            f"{owner.name}: a projected widening can grow only if the adjacent layers grow by the same width"
        )
    return AxisMap.of(sizes[0], index, zero=True)


def _split(source: str, owner: Owner, new: MoEConfig, old: MoEConfig, stream: StreamMap) -> TensorPlan | None:
    """Plan expert matrices cut into narrower experts; None if they are not cut, and for other parameters."""
    n_parts = new.n_experts // old.n_experts
    if n_parts == 1 or new.d_expert * n_parts != old.d_expert or not isinstance(owner.new, Experts):
        return None
    before, after, experts = owner.old, owner.new, AxisMap.same(old.n_experts)
    if owner.leaf == "w_down":
        written = stream.written(before.out_axes["d_model"], after.out_axes["d_model"])
        maps = product([experts, written]), AxisMap.same(old.d_expert)
        return TensorPlan(source, maps, scale=float(n_parts), cut=(old.n_experts, n_parts))
    # Gate and up stack hidden units along the rows, so that cutting an expert leaves every row where it is.
    read = stream.read(before.in_axes["d_model"], after.in_axes["d_model"])
    return TensorPlan(source, (AxisMap.same(len(before.weight)), read))


def _copies(owner: Owner) -> tuple[int, bool]:
    """Return the number of entries that share the gradient of one old entry, and True if their parts differ.

    Copies of one expert get equal parts, since they compute the same. The parts differ for copies of a dense
    feed-forward (different tokens), the pieces of a cut expert (different outputs) and copies of a key-value head
    (different queries).
    """
    axes, old, new = (*owner.new.out_axes, *owner.new.in_axes), owner.old_parent, owner.parent
    if isinstance(new, MoE) and "n_experts" in axes:
        if not isinstance(old, MoE):
            return new.config.n_experts, True
        return new.config.n_experts // old.config.n_experts, new.config.d_expert < old.config.d_expert
    if owner.attention is not None and "n_kv_heads" in axes:
        return owner.attention.n_kv_copies, True
    return 1, False


def _derived(owner: Owner) -> DerivedRows | None:
    """Return the rule for new rows that depend on other rows, if any.

    Queries before a norm are copied, and keys if one norm spans all heads and key-value heads are added.
    """
    if owner.attention is not None:
        old, new = owner.attention.old, owner.attention.new
        if new.qk_norm is None:
            return None
        is_per_head = new.qk_norm.over == "head"
        has_copies = {
            "w_q": not is_per_head or new.head_dim > old.head_dim,
            "w_k": not is_per_head and new.n_kv_heads > old.n_kv_heads,
        }
        if not has_copies.get(owner.leaf):
            return None
        seed = zlib.crc32(owner.name.removesuffix(".bias").encode())
        return OrthogonalCopies(new.n_heads if is_per_head else 1, seed)
    if isinstance(owner.parent, MoE) and isinstance(owner.old_parent, MoE) and owner.leaf == "w_up":
        n_copies = owner.parent.config.n_experts // owner.old_parent.config.n_experts
        return MirroredNoise(n_copies, owner.new.out_axes["d_expert"]) if n_copies > 1 else None
    return None


def slot_plan(source: str, owner: Owner, stream: StreamMap, draw: Draw) -> TensorPlan | None:
    """Return the plan of a parameter of a hyper-connection, None for all others. draw: draws an untrained one.

    At first no old block reads a new slot and nothing is carried from it into an old one, so its content is free; it
    comes into use as soon as a read coefficient is learned. With dynamic coefficients both the static table and its
    scale must be 0 there, because one projection serves all slots. Source: arXiv:2511.11238.
    """
    old, new = owner.old_parent, owner.parent
    if not (isinstance(old, HyperConnection) and isinstance(new, HyperConnection)):
        return None
    # The table is [read | carry | write]; each part gets its new columns at its end.
    columns, offset = [], 0
    for n_old, n_new in zip(_columns(old), _columns(new)):
        columns += [*range(offset, offset + n_old), *[-1] * (n_new - n_old)]
        offset += n_old
    coefficients = AxisMap.of(offset, columns)
    if isinstance(owner.new, Vector) and owner.new.out_axes == new.table:  # the static table or its scale, flattened
        slots = AxisMap.appended(old.config.n_slots, new.config.n_slots, zero=False)
        # Contributions of new slots to reads and old slots must be 0.
        n_read, n_slots, n_write = _columns(new)
        is_new_slot = torch.arange(n_slots) >= old.config.n_slots
        to_old = torch.cat((torch.ones(n_read, dtype=torch.bool), ~is_new_slot, torch.zeros(n_write, dtype=torch.bool)))
        unused = (is_new_slot[:, None] & to_old).flatten()
        return TensorPlan(source, (product([slots, coefficients]),), InitialValues(draw), zero_entries=unused)
    if isinstance(owner.new, Control):
        read = stream.slot.read(owner.old.in_axes["slot_width"], owner.new.in_axes["slot_width"])
        return TensorPlan(source, (coefficients, read))
    return None


def _columns(site: HyperConnection) -> tuple[int, int, int]:
    """Return the numbers of columns of the table's parts: read, carry and write."""
    n_slots = site.config.n_slots
    return site.n_read, n_slots, site.table["n_coefficients"] - site.n_read - n_slots
