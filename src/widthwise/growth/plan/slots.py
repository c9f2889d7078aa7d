"""What becomes of the coefficients of hyper-connections when slots are added or layers grow.

Nobody old reads a new slot, and nothing of it is carried into an old one, so that its content is free and it is heard
of as soon as a read of it is learned. Source: arXiv:2511.11238; with coefficients that follow the state, both the
static table and its scale must be 0 there, because one projection serves all slots.
"""

import torch
from torch import Tensor

from widthwise.growth.maps.axis_map import AxisMap, product
from widthwise.growth.maps.stream import StreamMap
from widthwise.growth.plan.fresh import AsStarted, Draw
from widthwise.growth.plan.rules import Owner
from widthwise.growth.plan.tensor_plan import TensorPlan
from widthwise.model.axes import Control, Vector
from widthwise.model.residual.hyper_connections import HyperConnection


def slot_plan(source: str, owner: Owner, stream: StreamMap, start: Draw) -> TensorPlan | None:
    """Of a parameter of a hyper-connection; None of all others. start: fills an untrained one."""
    old, new = owner.old_parent, owner.parent
    if not (isinstance(old, HyperConnection) and isinstance(new, HyperConnection)):
        return None
    if isinstance(owner.new, Vector):
        return table_plan(source, old, new, start)
    if isinstance(owner.new, Control):
        columns = stream.slot_read(owner.old.in_axes["slot_width"], owner.new.in_axes["slot_width"])
        return TensorPlan(source, (coefficient_map(old, new), columns))
    return None


def coefficient_map(old: HyperConnection, new: HyperConnection) -> AxisMap:
    """Columns of the table: read blocks, carried slots, written blocks."""
    parts, offset = [], 0
    for n_old, n_new in zip(_columns(old), _columns(new)):
        parts += [*range(offset, offset + n_old), *[-1] * (n_new - n_old)]
        offset += n_old
    return AxisMap.of(offset, parts)


def _columns(site: HyperConnection) -> tuple[int, int, int]:
    n_slots = site.config.n_slots
    return site.n_read, n_slots, site.table["n_coefficients"] - site.n_read - n_slots


def table_plan(source: str, old: HyperConnection, new: HyperConnection, start: Draw) -> TensorPlan:
    """Of the static table or its scale, flattened. start: fills the whole of an untrained one."""
    rows = AxisMap.appended(old.config.n_slots, new.config.n_slots, zero=False)
    columns = coefficient_map(old, new)
    return TensorPlan(source, (product([rows, columns]),), AsStarted(start), zero_entries=_unheard(old, new).flatten())


def _unheard(old: HyperConnection, new: HyperConnection) -> Tensor:
    """bool (n_slots, n_coefficients): what a new slot gives to the blocks that are read, and to old slots."""
    n_read, n_slots, n_write = _columns(new)
    is_new_slot = torch.arange(n_slots) >= old.config.n_slots
    to_old = torch.cat((torch.ones(n_read, dtype=torch.bool), ~is_new_slot, torch.zeros(n_write, dtype=torch.bool)))
    return is_new_slot[:, None] & to_old
