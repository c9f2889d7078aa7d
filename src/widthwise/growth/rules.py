"""The plan of a tensor, from the names of its axes.

One rule covers every component: the weights that write new coordinates are 0 and the weights that read them are free,
or the reverse. New entries then change nothing, yet they learn: the factor that is 0 has a gradient at once, and the
other one as soon as the first has moved. A component whose axes are named below needs no other code; the coefficients
of hyper-connections, at the end, have separate rules.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

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
from widthwise.mistakes import UserError
from widthwise.model.attention_module import Attention
from widthwise.model.axes import Control, Experts, LayerNorm, Norm, Scale, Table, Vector, Weight
from widthwise.model.ffn.interface import FFNConfig
from widthwise.model.ffn.moe import MoEConfig
from widthwise.model.ffn.moe_module import MoE
from widthwise.model.residual.hyper_connections_module import HyperConnection
from widthwise.model.residual.manifold_module import Mixing

ZEROS = {("w_k", "head_dim"), ("w_o", "n_heads"), ("w_o", "v_head_dim")}
"""(matrix, axis) whose new entries are 0. With keys of 0, new query coordinates do not change the scores; columns of 0
in w_o ignore new heads and new value coordinates. The other factor is free, so that both learn."""


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
        """Name of the module in its parent, such as w_q; a bias has the name of its matrix."""
        return self.name.removesuffix(".bias").rpartition(".")[2]

    @cached_property
    def attention(self) -> AttentionMaps | None:
        """Maps of the heads, if the module is part of attention. Raises UserError if the attention cannot grow so."""
        if isinstance(self.parent, Attention) and isinstance(self.old_parent, Attention):
            return AttentionMaps.of(self.old_parent.config, self.parent.config)
        return None


def weight_plan(source: str, owner: Owner, stream: StreamMap) -> TensorPlan:
    """Return the plan of the parameter named `source` in the old model. Raises UserError if it cannot grow so."""
    old = owner.old
    new = owner.new
    # The divisors of query/key norms already count the copies that `OrthogonalCopies` makes.
    is_norm = isinstance(old, Norm) and isinstance(new, Norm) and not isinstance(owner.parent, Attention)
    if is_norm and old.norm_dim != new.norm_dim:
        raise UserError(
            f"{owner.name}: would divide by {new.norm_dim} instead of {old.norm_dim}; the widths that a sublayer reads "
            "and writes must grow by the same factor"
        )
    if isinstance(owner.parent, MoE) and isinstance(owner.old_parent, MoE):
        cut = _split(source, owner, owner.parent.config, owner.old_parent.config, stream)
        if cut is not None:
            return cut
    maps = _dimensions(owner, stream)
    fresh = Mean(new.gain_offset) if isinstance(new, Norm) else FreshEntries()
    n_copies, copies_differ = _copies(owner)
    return TensorPlan(source, maps, fresh, _derived(owner), n_copies=n_copies, copies_differ=copies_differ)


def _dimensions(owner: Owner, stream: StreamMap) -> tuple[AxisMap, ...]:
    """Return the maps of rows and columns, or of the entries of a vector."""
    hidden = () if owner.ffn is None else owner.ffn.hidden_axes.values()
    maps = []
    for old, new in zip(owner.old.dimensions, owner.new.dimensions, strict=True):
        if isinstance(owner.parent, MoE) and not isinstance(owner.old_parent, MoE):
            # A dense matrix counts as a mixture of one expert.
            dense = {"d_expert" if name == "d_ff" else name: n for name, n in old.items()}
            old = {name: dense.get(name, 1) for name in new}
        role = "out" if new is owner.new.out_axes else "in"
        if isinstance(owner.new, Norm):
            role = "gain"
        axes = [GrownAxis(owner, name, old[name], n_new, role, stream) for name, n_new in new.items()]
        rules = [_hidden_units if axis.name in hidden else RULES.get(axis.name, _unchanged) for axis in axes]
        maps.append(product([rule(axis) for rule, axis in zip(rules, axes)]))
    return tuple(maps)


@dataclass(frozen=True)
class GrownAxis:
    """One axis of a parameter, before and after growth."""

    owner: Owner
    name: str
    n_old: int
    n_new: int
    role: str
    """`out`: the tensor writes the axis; `in`: reads it; `gain`: multiplies it elementwise."""
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


def _written_or_read(axis: GrownAxis, stream: StreamMap, is_table: bool) -> AxisMap:
    """Map coordinates of a stream; new ones hold 0, so that gains are free there. Biases of a LayerNorm must be 0."""
    if axis.role == "in":
        return stream.read(axis.n_old, axis.n_new)
    owner = axis.owner
    written = (stream.table if is_table else stream.written)(axis.n_old, axis.n_new)
    is_norm_bias = owner.name.endswith(".bias") and isinstance(getattr(owner.parent, owner.leaf), LayerNorm)
    return AxisMap.of(axis.n_old, written.index, is_norm_bias) if axis.role == "gain" or is_norm_bias else written


def _experts(axis: GrownAxis) -> AxisMap:
    """Map experts; copies of an old one are adjacent."""
    if axis.n_new < axis.n_old:
        return _unchanged(axis)
    return AxisMap.of(axis.n_old, [i * axis.n_old // axis.n_new for i in range(axis.n_new)])


def _unchanged(axis: GrownAxis) -> AxisMap:
    """Map an axis that keeps its size. Raises UserError if the size changes."""
    if axis.n_old != axis.n_new:
        raise UserError(
            f"{axis.owner.name}: axis {axis.name} cannot grow from {axis.n_old} to {axis.n_new} without changing the "
            "function"
        )
    return AxisMap.same(axis.n_old)


RULES: dict[str, Callable[[GrownAxis], AxisMap]] = {
    **dict.fromkeys(("n_heads", "n_kv_heads", "head_dim", "v_head_dim"), _head_entries),
    "d_model": lambda axis: _written_or_read(axis, axis.stream, isinstance(axis.owner.new, Table)),
    "stream_width": lambda axis: _written_or_read(axis, axis.stream, is_table=True),
    "slot_width": lambda axis: _written_or_read(axis, axis.stream.slot, is_table=False),
    "n_slots": lambda axis: AxisMap.appended(axis.n_old, axis.n_new, zero=axis.role == "in"),
    "n_experts": _experts,
}
"""Axis -> rule. An axis without a rule keeps its size, unless the feed-forward names it among its `hidden_axes`."""


def _split(source: str, owner: Owner, new: MoEConfig, old: MoEConfig, stream: StreamMap) -> TensorPlan | None:
    """Return the plan of expert matrices that are cut into narrower experts; None if they are not, or for others."""
    n_parts = new.n_experts // old.n_experts
    if n_parts == 1 or new.d_expert * n_parts != old.d_expert or not isinstance(owner.new, Experts):
        return None
    if owner.leaf == "w_down":
        written = stream.written(owner.old.out_axes["d_model"], owner.new.out_axes["d_model"])
        maps = product([AxisMap.same(old.n_experts), written]), AxisMap.same(old.d_expert)
        return TensorPlan(source, maps, scale=float(n_parts), cut=(old.n_experts, n_parts))
    # Gate and up stack hidden units along the rows, so that cutting an expert leaves every row where it is.
    read = stream.read(owner.old.in_axes["d_model"], owner.new.in_axes["d_model"])
    return TensorPlan(source, (AxisMap.same(len(owner.old.weight)), read))


def _copies(owner: Owner) -> tuple[int, bool]:
    """Return the number of entries that share the gradient of one old entry, and True if their parts differ.

    Copies of an expert get equal parts, because they compute the same. The parts differ for copies of a dense
    feed-forward (different tokens), the pieces of a cut expert (different outputs) and copies of a key-value head
    (different queries).
    """
    axes = (*owner.new.out_axes, *owner.new.in_axes)
    old = owner.old_parent
    new = owner.parent
    if isinstance(new, MoE) and "n_experts" in axes:
        if not isinstance(old, MoE):
            return new.config.n_experts, True
        return new.config.n_experts // old.config.n_experts, new.config.d_expert < old.config.d_expert
    if owner.attention is not None and "n_kv_heads" in axes:
        return owner.attention.n_kv_copies, True
    return 1, False


def _derived(owner: Owner) -> DerivedRows | None:
    """Return the rule for new rows that depend on other rows, if any.

    Queries before a norm are copied; keys are copied if one norm spans all heads and key-value heads are added.
    """
    if owner.attention is not None:
        old = owner.attention.old
        new = owner.attention.new
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
    """Return the plan of a parameter of hyper-connections, None for all others. draw: draws an untrained one.

    At first no old block reads a new slot and nothing is carried from it into an old slot, so its content is free; it
    is used as soon as a read coefficient is learned. With dynamic coefficients both the static table and its scale must
    be 0 there, because one projection serves all slots. Source: arXiv:2511.11238.
    """
    old = owner.old_parent
    new = owner.parent
    if isinstance(old, Mixing) and isinstance(new, Mixing):
        return _copied_slots_plan(source, owner, old, new, stream)
    if not (isinstance(old, HyperConnection) and isinstance(new, HyperConnection)):
        return None
    # The table is [read | carry | write]; new columns of a part come last.
    columns = []
    offset = 0
    for n_old, n_new in zip(_columns(old), _columns(new)):
        columns += [*range(offset, offset + n_old), *[-1] * (n_new - n_old)]
        offset += n_old
    coefficients = AxisMap.of(offset, columns)
    if isinstance(owner.new, Vector) and owner.new.out_axes == new.table_axes:  # static table or its scale, flattened
        slots = AxisMap.appended(old.config.n_slots, new.config.n_slots, zero=False)
        # A new slot must not contribute to reads and old slots.
        n_read, n_slots, n_write = _columns(new)
        is_new_slot = torch.arange(n_slots) >= old.config.n_slots
        to_old = torch.cat((torch.ones(n_read, dtype=torch.bool), ~is_new_slot, torch.zeros(n_write, dtype=torch.bool)))
        unused = (is_new_slot[:, None] & to_old).flatten()
        return TensorPlan(source, (product([slots, coefficients]),), InitialValues(draw), zero_entries=unused)
    if isinstance(owner.new, Control):
        read = stream.slot.read(owner.old.in_axes["slot_width"], owner.new.in_axes["slot_width"])
        return TensorPlan(source, (coefficients, read))
    return None


def _copied_slots_plan(source: str, owner: Owner, old: Mixing, new: Mixing, stream: StreamMap) -> TensorPlan:
    """Return the plan of a parameter of a manifold-constrained connection, whose new slots are copies of old ones.

    Copies have equal logits, and a carry between two slots is divided among their copies. Weights that read
    copies are divided by their number.
    """
    n_old = old.config.n_slots
    n_copies = new.config.n_slots // n_old
    if isinstance(owner.new, Scale):
        return TensorPlan.same(source, owner.new.weight.shape)
    slots = AxisMap.of(n_old, [slot // n_copies for slot in range(new.config.n_slots)])
    logits = AxisMap.same(owner.old.out_axes["n_coefficients"])
    if n_copies > 1:
        parts = [slots] if new.form.carry is None else [slots, slots, product([slots, slots])]
        offsets = [i * n_old for i in range(len(parts))]
        index = torch.cat([offset + part.index for offset, part in zip(offsets, parts)])
        logits = AxisMap.of(len(logits.index), index)
    if isinstance(owner.new, Vector):
        return TensorPlan(source, (logits,), n_copies=n_copies)
    read = stream.slot.read(owner.old.in_axes["slot_width"], owner.new.in_axes["slot_width"])
    return TensorPlan(source, (logits, product([slots, read])), scale=1 / n_copies, n_copies=n_copies**2)


def _columns(site: HyperConnection) -> tuple[int, int, int]:
    """Return the numbers of columns of read, carry and write in the table."""
    n_slots = site.config.n_slots
    return site.n_read, n_slots, site.table_axes["n_coefficients"] - site.n_read - n_slots
