"""The coefficients of hyper-connections when slots are added or layers grow.

At first no old block reads a new slot and nothing is carried from it into an old one, so its content is free; it comes
into use as soon as a read coefficient is learned. With dynamic coefficients both the static table and its scale must
be 0 there, because one projection serves all slots. Source: arXiv:2511.11238.
"""

import torch
from torch import Tensor

from widthwise.growth.maps.axis_map import AxisMap, product
from widthwise.growth.maps.stream import StreamMap
from widthwise.growth.plan.fresh import AsStarted, Draw
from widthwise.growth.plan.rules import Owner
from widthwise.growth.plan.tensor_plan import TensorPlan
from widthwise.model.axes import Control, Vector
from widthwise.model.residual.hyper_connections_module import HyperConnection


def slot_plan(source: str, owner: Owner, stream: StreamMap, start: Draw) -> TensorPlan | None:
    """The plan of a parameter of a hyper-connection, None for all others.

    start: initialises an untrained one.
    """
    old, new = owner.old_parent, owner.parent
    if not (isinstance(old, HyperConnection) and isinstance(new, HyperConnection)):
        return None
    if isinstance(owner.new, Vector) and owner.new.out_axes == new.table:
        return table_plan(source, old, new, start)
    if isinstance(owner.new, Control):
        columns = stream.slot_read(owner.old.in_axes["slot_width"], owner.new.in_axes["slot_width"])
        return TensorPlan(source, (coefficient_map(old, new), columns))
    return None


def coefficient_map(old: HyperConnection, new: HyperConnection) -> AxisMap:
    """The columns of the table [read | carry | write]; each part gets its new columns at its end."""
    parts, offset = [], 0
    for n_old, n_new in zip(_columns(old), _columns(new)):
        parts += [*range(offset, offset + n_old), *[-1] * (n_new - n_old)]
        offset += n_old
    return AxisMap.of(offset, parts)


def _columns(site: HyperConnection) -> tuple[int, int, int]:
    n_slots = site.config.n_slots
    return site.n_read, n_slots, site.table["n_coefficients"] - site.n_read - n_slots


def table_plan(source: str, old: HyperConnection, new: HyperConnection, start: Draw) -> TensorPlan:
    """The plan of the static table or of its scale, both flattened. start: initialises a whole untrained one."""
    rows = AxisMap.appended(old.config.n_slots, new.config.n_slots, zero=False)
    columns = coefficient_map(old, new)
    return TensorPlan(
        source, (product([rows, columns]),), AsStarted(start), zero_entries=_must_be_unused(old, new).flatten()
    )


def _must_be_unused(old: HyperConnection, new: HyperConnection) -> Tensor:
    """bool (n_slots, n_coefficients): what new slots give to read blocks and to old slots, which must be 0."""
    n_read, n_slots, n_write = _columns(new)
    is_new_slot = torch.arange(n_slots) >= old.config.n_slots
    to_old = torch.cat((torch.ones(n_read, dtype=torch.bool), ~is_new_slot, torch.zeros(n_write, dtype=torch.bool)))
    return is_new_slot[:, None] & to_old
