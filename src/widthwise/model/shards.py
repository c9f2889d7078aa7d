"""Tensors of which this process may hold only some rows, as `fully_shard` leaves parameters.

The k-th of n shards, counted from 0, holds rows k * c to (k + 1) * c with c = ceil(rows / n), as far as there are any.
Nothing here imports torch.distributed, which takes a second: a tensor that is whole is a plain one.
"""

from collections.abc import Iterable
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


def set_whole(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """`put` for every pair (tensor, whole tensor of values)."""
    for tensor, values in pairs:
        put(tensor, values)


def reshard(model: nn.Module) -> None:
    """Gives back the whole weights that a forward pass without a backward pass has left behind.

    Until then the model's parameters are others than those that its optimizer knows.
    """
    for module in model.modules():
        if hasattr(module, "reshard"):
            cast(Any, module).reshard()
