"""One of several processes that shard small models with `fully_shard` and train a step: sharded_ranks.py FOLDER.

Writes what it held and sent to FOLDER/RANK.json: case -> number of shards -> what. The first writes the most memory
that the steps of FOLDER/steps.json need to FOLDER/memory.json; there the others are made up, so there can be many.
"""

import json
import os
import sys
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from widthwise.config_io import parse
from widthwise.kernels.dispatch import autocast
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder, allocate, blueprint
from widthwise.model.recompute import RECOMPUTE
from widthwise.recipe.optimizer import AdamWConfig, MuonConfig
from widthwise.recipe.recipe import Recipe
from widthwise.training.distributed import Group, leave
from widthwise.training.objective import LoadedTeacher

N_RANKS = 3
MESHES = {"3": [[0, 1, 2]], "2": [[0, 1]], "1": [[0], [1], [2]]}
"""Number of shards -> ranks by copy of the model and shard."""
GIVEN = {
    "c10d::_allgather_base_": 1,
    "_c10d_functional::all_gather_into_tensor": 0,
    "c10d::_reduce_scatter_base_": 0,
    "c10d::allreduce_": 0,
    "c10d::broadcast_": 0,
}
"""Collective -> which of its arguments is what a process holds afterwards or before, the smaller of the two."""


class Collectives(TorchDispatchMode):
    """Counts the bytes of what each collective is given."""

    def __init__(self):
        super().__init__()
        self.n_bytes = Counter[str]()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name()
        if name in GIVEN:
            self.n_bytes[name] += sum(each.nbytes for each in tree_iter(args[GIVEN[name]]))
        return func(*args, **(kwargs or {}))


class LiveMemory(TorchDispatchMode):
    """Follows the bytes of all storages that an operator has seen and that are still there."""

    def __init__(self):
        super().__init__()
        self._sizes: dict[int, int] = {}
        self._bytes = self.peak_bytes = 0
        for module in (_fsdp_param, _fsdp_param_group):  # they resize storages unseen by any mode
            for name in ("alloc_storage", "free_storage"):
                if hasattr(module, name):
                    setattr(module, name, self._followed(getattr(module, name)))

    def see(self, tensor: Any) -> None:
        if isinstance(tensor, torch.Tensor):
            storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()
            if storage._cdata not in self._sizes:
                weakref.finalize(storage, self._set, storage._cdata, 0)
            self._set(storage._cdata, storage.nbytes())

    def _set(self, storage: int, n_bytes: int) -> None:
        self._bytes += n_bytes - self._sizes.pop(storage, 0)
        self.peak_bytes = max(self.peak_bytes, self._bytes)
        if n_bytes:
            self._sizes[storage] = n_bytes

    def _followed(self, resize: Any) -> Any:
        def resized(tensor: torch.Tensor) -> None:
            resize(tensor)
            self.see(tensor)

        return resized

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in tree_iter((args, result)):
            self.see(each)
        return result


class OnMesh(Group):
    """Processes of a mesh that need not be all there are, and say nothing to each other."""

    def __init__(self, mesh: DeviceMesh):
        self._mesh, self.rank, self.world_size, self.n_shards = mesh, 0, mesh.size(), mesh.size(1)

    def on_rank_zero(self, work: Any) -> Any:
        return work()

    def all_gather(self, work: Any) -> Any:
        return [work()]


def sharded(config: ModelConfig, mesh: DeviceMesh, recompute: Any = "none") -> Decoder:
    model = blueprint(config)
    model.recompute = RECOMPUTE[recompute]
    OnMesh(mesh).shard_model(model)
    allocate(model, "cpu")
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, 0.1)
    return model


def step(model: Decoder, mesh: DeviceMesh, shape: Any, n_passes: int, precision="fp32", teacher=None) -> None:
    """The gradients of a step, reduced after the last pass."""
    tokens = torch.zeros(shape, dtype=torch.long)
    for i in range(n_passes):
        OnMesh(mesh).set_gradient_sync(model, is_last=i == n_passes - 1)
        with autocast(torch.device("cpu"), precision):
            objective = model.loss(tokens, tokens, teacher=teacher and teacher.read(tokens, None, None)).objective
        objective.backward()


def held_and_sent(config: ModelConfig, mesh: DeviceMesh, has_muon: bool) -> dict[str, Any]:
    """Numbers that a process holds of each parameter, and bytes that it sends in a step of two passes."""
    model = sharded(config, mesh)
    optimizer = MuonConfig(lr=0.1, adamw=AdamWConfig(lr=0.1)).build(model) if has_muon else None
    held = {name: parameter.to_local().numel() for name, parameter in model.named_parameters()}
    with Collectives() as seen:
        step(model, mesh, (2, 13), n_passes=2)
        if optimizer is not None:
            optimizer.step()
    assert held == {name: parameter.grad.to_local().numel() for name, parameter in model.named_parameters()}
    return {"held": held, "n_bytes": dict(seen.n_bytes)}


def most_memory(case: dict[str, Any]) -> int:
    """Most bytes at any moment of the second step, where AdamW has its state."""
    n_devices, n_shards = case["n_devices"], case["n_shards"]
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=n_devices)
    mesh = init_device_mesh("cpu", (n_devices // n_shards, n_shards), mesh_dim_names=("replicate", "shard"))
    recipe = parse(Recipe, case["recipe"])
    model = sharded(recipe.explicit_model, mesh, recipe.train.activation_checkpointing)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with LiveMemory() as live:
        teacher = None if recipe.train.distill is None else LoadedTeacher(recipe, OnMesh(mesh))
        for _ in range(2):
            live.peak_bytes = 0
            step(model, mesh, case["shape"], case["n_passes"], recipe.train.precision, teacher)
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()
    return live.peak_bytes


def main(folder: Path, rank: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=N_RANKS)
    names = ("replicate", "shard")
    meshes = {n: DeviceMesh("cpu", ranks, mesh_dim_names=names) for n, ranks in MESHES.items()}
    own = {n: mesh for n, mesh in meshes.items() if mesh.get_coordinate() is not None}
    found = {}
    for name, data in json.loads((folder / "cases.json").read_text()).items():
        config = parse(ModelConfig, data)
        found[name] = {n: held_and_sent(config, mesh, has_muon=name == "muon") for n, mesh in own.items()}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    leave()
    if rank == 0:
        steps = json.loads((folder / "steps.json").read_text())
        (folder / "memory.json").write_text(json.dumps([most_memory(each) for each in steps]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(os.environ["RANK"]))
