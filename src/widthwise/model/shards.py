"""Tensors of which this process may hold only some rows, as `fully_shard` leaves parameters; the units it splits.

The k-th of n shards, counted from 0, holds rows k * c to (k + 1) * c with c = ceil(rows / n), as far as there are any;
memory and collectives are laid out for full shards, so the difference is padding. `fully_shard` acts on every decoder
layer, on the layer of every further head, and on the rest: what such a unit holds is gathered and freed together.
Nothing here imports torch.distributed, which takes a second: a tensor that is whole is a plain one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn


def rows_of_shard(n_rows: int, shard: int, n_shards: int) -> slice:
    """The rows that a shard holds of a tensor with so many."""
    n_each = -(-n_rows // n_shards)
    return slice(min(shard * n_each, n_rows), min((shard + 1) * n_each, n_rows))


def is_shared(tensor: Tensor) -> bool:
    """Return whether several processes share the tensor, a DTensor; each may still hold all of it."""
    return hasattr(tensor, "full_tensor")


def is_sharded(tensor: Tensor) -> bool:
    """Return whether each process may hold only some rows of it."""
    return is_shared(tensor) and cast(Any, tensor).device_mesh.size(1) > 1


def held(tensor: Tensor) -> Tensor:
    """The rows that this process holds, all of them where the tensor is whole. Shares its memory."""
    return cast(Any, tensor).to_local() if is_shared(tensor) else tensor


def held_rows(tensor: Tensor) -> slice:
    """Which rows those are."""
    if not is_shared(tensor):
        return slice(0, len(tensor))
    mesh = cast(Any, tensor).device_mesh
    return rows_of_shard(len(tensor), mesh.get_local_rank(1), mesh.size(1))


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor. Where it is sharded, all processes that share it must ask at the same time."""
    return cast(Any, tensor).full_tensor() if is_shared(tensor) else tensor


def with_rows(like: Tensor, rows: Tensor) -> Tensor:
    """A tensor that is divided as `like` is. rows: those that this process holds."""
    if not is_shared(like):
        return rows
    from torch.distributed.tensor import DTensor

    like = cast(DTensor, like)
    return DTensor.from_local(
        rows, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


@torch.no_grad()
def put(tensor: Tensor, values: Tensor) -> None:
    """Copies the rows that this process holds from a whole tensor of values."""
    held(tensor).copy_(values[held_rows(tensor)] if is_shared(tensor) else values)


def reshard(model: nn.Module) -> None:
    """Free the whole weights that a forward pass without a backward pass has left gathered.

    Until then the model's parameters are others than those that its optimizer knows.
    """
    for module in model.modules():
        if hasattr(module, "reshard"):
            cast(Any, module).reshard()


def block_entries(shape: Sequence[int], n_shards: int) -> int:
    """Entries of a parameter's block, padding included: ceil(rows / n_shards) rows of it."""
    n_rows, *row = shape
    return -(-n_rows // n_shards) * torch.Size(row).numel()


@dataclass(frozen=True)
class Unit:
    """Parameters that are gathered and freed together."""

    name: str
    parameters: tuple[nn.Parameter, ...]
    """In no other unit, each once: a tied head is the embedding."""

    @property
    def n_params(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters)

    def block_entries(self, n_shards: int) -> int:
        """Entries that each of n_shards processes holds, padding included."""
        return sum(block_entries(parameter.shape, n_shards) for parameter in self.parameters)

    def gathered_entries(self, n_shards: int) -> int:
        """Entries of the unit gathered from n_shards processes, padding included."""
        return n_shards * self.block_entries(n_shards)


def sharded_units(layers: Iterable[tuple[str, nn.Module]], model: nn.Module) -> list[Unit]:
    """Return the units of a model: its named layers, then the root, whose parameters are in no layer.

    A parameter belongs to the first unit that reaches it, as with `fully_shard` called in this order.
    """
    units: list[Unit] = []
    taken: set[nn.Parameter] = set()
    for name, module in (*layers, ("root", model)):
        parameters = tuple(parameter for parameter in module.parameters() if parameter not in taken)
        taken.update(parameters)
        units.append(Unit(name, parameters))
    return units
