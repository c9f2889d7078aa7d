"""Hyper-connections: reading and writing the slots of an over-width residual state."""

from typing import NamedTuple

import torch
from torch import Tensor

from widthwise.kernels.dispatch import use_fused
from widthwise.kernels.hyper_connections import fused, reference


class ReferenceRead(NamedTuple):
    """What the reference write needs from its read."""

    state: Tensor
    coefficients: Tensor
    n_read: int


def read_slots(
    state: Tensor,
    static: Tensor,
    projection: Tensor | None,
    scale: Tensor | None,
    n_read: int,
    eps: float,
    state_every: int = 1,
) -> tuple[Tensor, ReferenceRead | fused.FusedRead]:
    """The input of a sublayer, and what `write_slots` needs later. See `reference.read_slots`.

    state_every: the hand-written form keeps only every state_every-th state for the backward pass.
    """
    is_recorded = state.requires_grad or static.requires_grad  # else a write would find no read in the graph
    if use_fused(state) and (is_recorded or not torch.is_grad_enabled()):
        return fused.read_slots(state, static, projection, scale, n_read, eps, state_every)
    x, coefficients = reference.read_slots(state, static, projection, scale, n_read, eps)
    return x, ReferenceRead(state, coefficients, n_read)


def write_slots(kept: ReferenceRead | fused.FusedRead, update: Tensor, multiplier: float) -> Tensor:
    """The state after a sublayer, once for each read. See `reference.write_slots`."""
    if isinstance(kept, fused.FusedRead):
        return fused.write_slots(kept, update, multiplier)
    return reference.write_slots(kept.state, update, kept.coefficients, kept.n_read, multiplier)
