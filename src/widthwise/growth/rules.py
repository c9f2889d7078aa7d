"""The plan of a tensor, from the names of its axes.

One rule covers every component: the weights that write new coordinates are 0 and the weights that read them are free,
or the reverse. New entries then change nothing, yet they learn: the weights that are 0 have a gradient at once, and the
free ones as soon as those have moved. A component whose axes are named below needs no other code; the coefficients of
hyper-connections, at the end, have separate rules.
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
from widthwise.model.ffn.moe_module import MoE
from widthwise.model.residual.hyper_connections_module import HyperConnection
from widthwise.model.residual.manifold_module import Mixing

ZEROS = {("w_k", "head_dim"), ("w_o", "n_heads"), ("w_o", "v_head_dim")}
"""(matrix, axis) whose new entries are 0. With keys of 0, new query coordinates do not change the scores; columns of 0
in w_o ignore new heads and new value coordinates. The other factor is free, so that both learn."""


@dataclass(frozen=True)
class GrownWeight:
    """The module that holds a parameter, before and after growth, and the modules around it."""

    name: str
    """The module's name in the grown model."""
    source: str
    """The parameter's name in the old model."""
    old: Weight
    new: Weight
    parent: nn.Module
    """The module around it in the grown model; for a bias, the one around its matrix or norm."""
    old_parent: nn.Module
    ffn: FFNConfig | None
    """Config of the feed-forward around it in the grown model, if any."""
    stream: StreamMap

    @property
    def leaf(self) -> str:
        """Name of the module in its parent, such as w_q; a bias has the name of its matrix."""
        return self.name.removesuffix(".bias").rpartition(".")[2]

    @cached_property
    def attention(self) -> AttentionMaps | None:
        """Maps of the heads if the module is part of attention. Raises UserError if the attention cannot grow."""
        if isinstance(self.parent, Attention) and isinstance(self.old_parent, Attention):
            return AttentionMaps.of(self.old_parent.config, self.parent.config)
        return None


def weight_plan(weight: GrownWeight) -> TensorPlan:
    """Return the plan of a parameter. Raises UserError if it cannot grow."""
    old = weight.old
    new = weight.new
    # The divisors of query/key norms already count the copies that `OrthogonalCopies` makes.
    is_norm = isinstance(old, Norm) and isinstance(new, Norm) and not isinstance(weight.parent, Attention)
    if is_norm and old.norm_dim != new.norm_dim:
        raise UserError(
            f"{weight.name}: would divide by {new.norm_dim} instead of {old.norm_dim}; the widths that a sublayer "
            "reads and writes must grow by the same factor"
        )
    cut_experts = _cut_experts_plan(weight)
    if cut_experts is not None:
        return cut_experts
    fresh = Mean(new.gain_offset) if isinstance(new, Norm) else FreshEntries()
    maps = _dimensions(weight)
    n_copies, copies_differ = _copies(weight)
    return TensorPlan(weight.source, maps, fresh, _derived(weight), n_copies=n_copies, copies_differ=copies_differ)


def _dimensions(weight: GrownWeight) -> tuple[AxisMap, ...]:
    """Return the maps of rows and columns, or of the entries of a vector."""
    hidden = () if weight.ffn is None else weight.ffn.hidden_axes.values()
    maps = []
    for old, new in zip(weight.old.dimensions, weight.new.dimensions, strict=True):
        if isinstance(weight.parent, MoE) and not isinstance(weight.old_parent, MoE):
            # A dense matrix counts as a mixture of one expert.
            old = {"n_experts": 1, "d_expert": old.get("d_ff", 1), **old}
        role = "out" if new is weight.new.out_axes else "in"
        if isinstance(weight.new, Norm):
            role = "gain"
        axis_maps = []
        for name, n_new in new.items():
            rule = _hidden_units if name in hidden else RULES.get(name, _unchanged)
            axis_maps.append(rule(GrownAxis(weight, name, old[name], n_new, role)))
        maps.append(product(axis_maps))
    return tuple(maps)


@dataclass(frozen=True)
class GrownAxis:
    """One axis of a parameter, before and after growth."""

    weight: GrownWeight
    name: str
    n_old: int
    n_new: int
    role: str
    """`out`: the tensor writes the axis; `in`: reads it; `gain`: multiplies it elementwise."""


def _head_entries(axis: GrownAxis) -> AxisMap:
    maps = axis.weight.attention
    if maps is None:
        return _unchanged(axis)
    return AxisMap.of(axis.n_old, getattr(maps, axis.name), zero=(axis.weight.leaf, axis.name) in ZEROS)


def _hidden_units(axis: GrownAxis) -> AxisMap:
    assert axis.weight.ffn is not None
    check_not_less(axis.weight.name, axis.n_old, axis.n_new)
    return AxisMap.of(axis.n_old, axis.weight.ffn.units_before(axis.n_old, axis.n_new), zero=axis.role == "in")


def _coordinates(axis: GrownAxis, stream: StreamMap, is_table: bool) -> AxisMap:
    """Map coordinates of a stream; new ones hold 0, so that gains are free there. Biases of a LayerNorm must be 0."""
    if axis.role == "in":
        return stream.read(axis.n_old, axis.n_new)
    weight = axis.weight
    written = stream.table(axis.n_old, axis.n_new) if is_table else stream.written(axis.n_old, axis.n_new)
    is_norm_bias = weight.name.endswith(".bias") and isinstance(getattr(weight.parent, weight.leaf), LayerNorm)
    if axis.role == "gain" or is_norm_bias:
        return AxisMap.of(axis.n_old, written.index, zero=is_norm_bias)
    return written


def _experts(axis: GrownAxis) -> AxisMap:
    """Map experts; copies of an old one are adjacent."""
    if axis.n_new < axis.n_old:
        return _unchanged(axis)
    return AxisMap.of(axis.n_old, [i * axis.n_old // axis.n_new for i in range(axis.n_new)])


def _unchanged(axis: GrownAxis) -> AxisMap:
    """Map an axis that keeps its size. Raises UserError if the size changes."""
    if axis.n_old != axis.n_new:
        raise UserError(
            f"{axis.weight.name}: axis {axis.name} cannot grow from {axis.n_old} to {axis.n_new} without changing the "
            "function"
        )
    return AxisMap.same(axis.n_old)


RULES: dict[str, Callable[[GrownAxis], AxisMap]] = {
    **dict.fromkeys(("n_heads", "n_kv_heads", "head_dim", "v_head_dim"), _head_entries),
    "d_model": lambda axis: _coordinates(axis, axis.weight.stream, isinstance(axis.weight.new, Table)),
    "stream_width": lambda axis: _coordinates(axis, axis.weight.stream, is_table=True),
    "slot_width": lambda axis: _coordinates(axis, axis.weight.stream.slot, is_table=False),
    "n_slots": lambda axis: AxisMap.appended(axis.n_old, axis.n_new, zero=axis.role == "in"),
    "n_experts": _experts,
}
"""Axis -> rule. An axis without a rule keeps its size, unless the feed-forward names it among its `hidden_axes`."""


def _cut_experts_plan(weight: GrownWeight) -> TensorPlan | None:
    """Return the plan of the matrices of experts that are cut into narrower ones; None for all other parameters."""
    if not (isinstance(weight.new, Experts) and isinstance(weight.parent, MoE) and isinstance(weight.old_parent, MoE)):
        return None
    old = weight.old_parent.config
    new = weight.parent.config
    n_parts = new.n_experts // old.n_experts
    if n_parts == 1 or new.d_expert * n_parts != old.d_expert:
        return None
    if weight.leaf == "w_down":
        written = weight.stream.written(weight.old.out_axes["d_model"], weight.new.out_axes["d_model"])
        maps = product([AxisMap.same(old.n_experts), written]), AxisMap.same(old.d_expert)
        return TensorPlan(weight.source, maps, scale=float(n_parts), cut=(old.n_experts, n_parts))
    # Gate and up stack hidden units along the rows, so that cutting an expert leaves every row where it is.
    read = weight.stream.read(weight.old.in_axes["d_model"], weight.new.in_axes["d_model"])
    return TensorPlan(weight.source, (AxisMap.same(len(weight.old.weight)), read))


def _copies(weight: GrownWeight) -> tuple[int, bool]:
    """Return the number of entries that share the gradient of one old entry, and True if their shares differ.

    Copies of an expert get equal shares, because they compute the same. The shares differ for copies of a dense
    feed-forward (different tokens), the pieces of a cut expert (different outputs) and copies of a key-value head
    (different queries).
    """
    axes = (*weight.new.out_axes, *weight.new.in_axes)
    old = weight.old_parent
    new = weight.parent
    if isinstance(new, MoE) and "n_experts" in axes:
        if not isinstance(old, MoE):
            return new.config.n_experts, True
        return new.config.n_experts // old.config.n_experts, new.config.d_expert < old.config.d_expert
    if weight.attention is not None and "n_kv_heads" in axes:
        return weight.attention.n_kv_copies, True
    return 1, False


def _derived(weight: GrownWeight) -> DerivedRows | None:
    """Return the rule for new rows that depend on other rows, if any.

    Queries before a norm are copied; keys are copied if one norm spans all heads and key-value heads are added.
    """
    if weight.attention is not None:
        old = weight.attention.old
        new = weight.attention.new
        if new.qk_norm is None:
            return None
        is_per_head = new.qk_norm.over == "head"
        has_copies = {
            "w_q": not is_per_head or new.head_dim > old.head_dim,
            "w_k": not is_per_head and new.n_kv_heads > old.n_kv_heads,
        }
        if not has_copies.get(weight.leaf):
            return None
        seed = zlib.crc32(weight.name.removesuffix(".bias").encode())
        return OrthogonalCopies(new.n_heads if is_per_head else 1, seed)
    if isinstance(weight.parent, MoE) and isinstance(weight.old_parent, MoE) and weight.leaf == "w_up":
        n_copies = weight.parent.config.n_experts // weight.old_parent.config.n_experts
        return MirroredNoise(n_copies, weight.new.out_axes["d_expert"]) if n_copies > 1 else None
    return None


def slot_plan(weight: GrownWeight, draw: Draw) -> TensorPlan | None:
    """Return the plan of a parameter of hyper-connections, None for all others. draw: draws an untrained one.

    At first no old block reads a new slot and nothing is carried from it into an old slot, so the content of a new slot
    is free. It is used as soon as its read coefficient is no longer 0. With dynamic coefficients both the static table
    and its scale must be 0 there, because one projection serves all slots. Source: arXiv:2511.11238.
    """
    old = weight.old_parent
    new = weight.parent
    if isinstance(old, Mixing) and isinstance(new, Mixing):
        return _copied_slots_plan(weight, old, new)
    if not (isinstance(old, HyperConnection) and isinstance(new, HyperConnection)):
        return None
    # The columns of the table are [read | carry | write]; new columns come last in each of the three.
    columns = []
    offset = 0
    for n_old, n_new in zip(_columns(old), _columns(new)):
        columns += [*range(offset, offset + n_old), *[-1] * (n_new - n_old)]
        offset += n_old
    coefficients = AxisMap.of(offset, columns)
    if isinstance(weight.new, Vector) and weight.new.out_axes == new.table_axes:  # static table or its scale, flattened
        slots = AxisMap.appended(old.config.n_slots, new.config.n_slots, zero=False)
        # A new slot must not contribute to reads and old slots.
        n_read, n_slots, n_write = _columns(new)
        is_new_slot = torch.arange(n_slots) >= old.config.n_slots
        to_old = torch.cat((torch.ones(n_read, dtype=torch.bool), ~is_new_slot, torch.zeros(n_write, dtype=torch.bool)))
        unused = (is_new_slot[:, None] & to_old).flatten()
        return TensorPlan(weight.source, (product([slots, coefficients]),), InitialValues(draw), zero_entries=unused)
    if isinstance(weight.new, Control):
        read = weight.stream.slot.read(weight.old.in_axes["slot_width"], weight.new.in_axes["slot_width"])
        return TensorPlan(weight.source, (coefficients, read))
    return None


def _copied_slots_plan(weight: GrownWeight, old: Mixing, new: Mixing) -> TensorPlan:
    """Return the plan of a parameter of a manifold-constrained connection, whose new slots are copies of old ones.

    Copies have equal logits, and a carry between two slots is divided among their copies. Weights that read
    copies are divided by their number.
    """
    n_old = old.config.n_slots
    n_copies = new.config.n_slots // n_old
    if isinstance(weight.new, Scale):
        return TensorPlan.same(weight.source, weight.new.weight.shape)
    slots = AxisMap.of(n_old, [slot // n_copies for slot in range(new.config.n_slots)])
    logits = AxisMap.same(weight.old.out_axes["n_coefficients"])
    if n_copies > 1:
        # The logits are [read], or [read | write | carry], where the carry has one for each pair of slots.
        parts = [slots] if new.form.carry is None else [slots, slots, product([slots, slots])]
        logits = AxisMap.of(len(logits.index), torch.cat([i * n_old + part.index for i, part in enumerate(parts)]))
    if isinstance(weight.new, Vector):
        return TensorPlan(weight.source, (logits,), n_copies=n_copies)
    read = weight.stream.slot.read(weight.old.in_axes["slot_width"], weight.new.in_axes["slot_width"])
    return TensorPlan(weight.source, (logits, product([slots, read])), scale=1 / n_copies, n_copies=n_copies**2)


def _columns(site: HyperConnection) -> tuple[int, int, int]:
    """Return the numbers of read, carry and write columns of the table."""
    n_slots = site.config.n_slots
    return site.n_read, n_slots, site.table_axes["n_coefficients"] - site.n_read - n_slots
