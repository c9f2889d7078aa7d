"""Tensors that `fully_shard` has divided, so that each process holds only some rows, and the units that it shards.

Shard k of n, counted from 0, holds the existing rows from k * c to (k + 1) * c, with c = ceil(rows / n). Memory and
collectives have the size of full shards, so the difference is padding. `fully_shard` is applied to every decoder layer,
to the layer of every MTP head, and to the root; the parameters of such a unit are gathered and freed together. This
file does not import torch.distributed at the top, which takes a second, because an unsharded tensor is a plain one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn


def rows_of_shard(n_rows: int, shard: int, n_shards: int) -> slice:
    """Return the range of rows in a shard of a tensor with n_rows rows. shard: its index, from 0."""
    shard_size = -(-n_rows // n_shards)
    return slice(min(shard * shard_size, n_rows), min((shard + 1) * shard_size, n_rows))


def is_shared(tensor: Tensor) -> bool:
    """Return whether the tensor is a DTensor. If its mesh has one shard, every process still holds all rows."""
    return hasattr(tensor, "full_tensor")


def is_sharded(tensor: Tensor) -> bool:
    """Return whether each process may hold only some rows of the tensor."""
    return is_shared(tensor) and cast(Any, tensor).device_mesh.size(1) > 1


def held(tensor: Tensor) -> Tensor:
    """Return the rows that this process holds, without a copy: all rows if the tensor is not sharded."""
    return cast(Any, tensor).to_local() if is_shared(tensor) else tensor


def held_rows(tensor: Tensor) -> slice:
    """Return the range of rows that this process holds."""
    if not is_shared(tensor):
        return slice(0, len(tensor))
    mesh = cast(Any, tensor).device_mesh
    return rows_of_shard(len(tensor), mesh.get_local_rank(1), mesh.size(1))


def whole(tensor: Tensor) -> Tensor:
    """Return the whole tensor. If it is sharded, all processes that share it must call this."""
    return cast(Any, tensor).full_tensor() if is_shared(tensor) else tensor


def with_rows(like: Tensor, rows: Tensor) -> Tensor:
    """Return a tensor with the sharding of `like`. rows: the rows that this process holds."""
    if not is_shared(like):
        return rows
    from torch.distributed.tensor import DTensor

    like = cast(DTensor, like)
    return DTensor.from_local(
        rows, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


@torch.no_grad()
def put(tensor: Tensor, values: Tensor) -> None:
    """Copy the rows that this process holds from a whole tensor of values into the tensor."""
    held(tensor).copy_(values[held_rows(tensor)] if is_shared(tensor) else values)


def reshard(model: nn.Module) -> None:
    """Free gathered weights after a forward pass that no backward pass followed.

    Until then the model's parameters are not the parameters in its optimizer.
    """
    for module in model.modules():
        if hasattr(module, "reshard"):
            cast(Any, module).reshard()


def block_entries(shape: Sequence[int], n_shards: int) -> int:
    """Return the number of entries in each shard of a parameter, including padding up to ceil(rows / n_shards) rows."""
    n_rows, *row = shape
    return -(-n_rows // n_shards) * torch.Size(row).numel()


@dataclass(frozen=True)
class Unit:
    """Parameters that are gathered and freed together."""

    name: str
    parameters: tuple[nn.Parameter, ...]
    """Each parameter belongs to one unit and appears once; a tied head is the embedding."""

    @property
    def n_params(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters)

    def block_entries(self, n_shards: int) -> int:
        """Return the entries that each of n_shards processes holds, including padding."""
        return sum(block_entries(parameter.shape, n_shards) for parameter in self.parameters)


def sharded_units(layers: Iterable[tuple[str, nn.Module]], model: nn.Module) -> list[Unit]:
    """Return the units of a model: its named layers, then the root with all other parameters.

    A parameter belongs to the first unit that reaches it, as with `fully_shard` called in this order.
    """
    units: list[Unit] = []
    taken: set[nn.Parameter] = set()
    for name, module in (*layers, ("root", model)):
        parameters = tuple(parameter for parameter in module.parameters() if parameter not in taken)
        taken.update(parameters)
        units.append(Unit(name, parameters))
    return units
