"""Several processes started by torchrun: data parallel, FSDP2 or both (HSDP), through PyTorch's `fully_shard`.

The mesh has two dimensions, (world / shards, shards). A group of `shards` processes holds the model once; every process
has its rows of the batch. One shard per group is data parallelism; a single group is FSDP2.
Layers are compiled first; then layers and the layers of MTP heads are sharded, then the rest. The decoder does its
activation checkpointing. Products run under autocast and weights are gathered in fp32: FSDP's bf16 policy would
round gains, and sum the gradient of the head in bf16.
"""

import os
import pickle
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from datetime import timedelta
from itertools import count
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.rendezvous import rendezvous
from torch.utils._pytree import tree_map_only

from widthwise.mistakes import RunFailed, UserError
from widthwise.model.decoder import Decoder
from widthwise.recipe.train_section import TrainConfig
from widthwise.training.launch import RankLocalError
from widthwise.training.processes import Processes

T = TypeVar("T")
E = TypeVar("E", bound=Exception)
PATIENCE = timedelta(hours=12)
"""Longest wait for work that rank 0 does alone, such as reading a corpus."""
LOST = re.compile("timed? ?out|connection|broken pipe|reset by peer", re.IGNORECASE)
"""Matches the RuntimeError of a message that did not arrive."""
SECONDS_TO_ANSWER = 5.0
IS_ON_EVERY_RANK = "is_on_every_rank"
"""Attribute of an error that every rank raises."""
_group_numbers = count()
_mesh_numbers = count()
_groups: dict[tuple[int, float], "Group"] = {}
"""Groups by shards and timeout, reused because torch keeps every mesh and its connections until the process ends."""


@contextmanager
def group(config: TrainConfig) -> Iterator["Group"]:
    """Join the processes of this launch, or use the existing group.

    An error of this process alone is raised as RankLocalError.
    """
    is_ours = not dist.is_initialized()
    key = (config.shards, config.hang_seconds)
    try:
        if is_ours:
            _join(config)
        processes = _groups[key] = _groups.get(key) or Group(*key)
    except RuntimeError as error:
        if not LOST.search(str(error)):
            raise
        raise RankLocalError(
            f"process {os.environ['RANK']}: waits for all processes to join, of which one has ended or hangs "
            f"(train.hang_seconds = {config.hang_seconds:g}; {str(error).splitlines()[0]})"
        ) from None
    try:
        yield processes
    except RankLocalError:
        raise
    except (UserError, RunFailed) as error:
        if processes.is_rank_zero or hasattr(error, IS_ON_EVERY_RANK):
            raise
        raise RankLocalError(f"process {processes.rank}: {error}") from None
    except RuntimeError as error:
        if not LOST.search(str(error)):
            raise
        raise RankLocalError(f"process {processes.rank}: {processes.who_is_missing(error)}") from None
    if is_ours:
        _groups.clear()
        leave()


def leave() -> None:
    """Wait for all processes, then close the connections: closing one may lose its last message."""
    store = _get_default_store()
    store.set(f"leaving-{dist.get_rank()}", "")
    with suppress(RuntimeError):  # the process that holds the store leaves while others ask
        store.wait([f"leaving-{rank}" for rank in range(dist.get_world_size())])
    dist.destroy_process_group()


def _join(config: TrainConfig) -> None:
    """Initialise torch.distributed.

    The store of torchrun's agent outlives a restart of the workers and still has the addresses of dead workers, so
    every start needs new keys. A store in the first worker is new each time; its keys have no restart count, because
    the counts of several agents may differ.
    """
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")  # nothing is in place
    store, rank, world_size = next(iter(rendezvous("env://", timeout=timedelta(seconds=config.hang_seconds))))
    is_agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if is_agents else "0"
    if torch.cuda.is_available():
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        n_gpus = torch.cuda.device_count()
        if local_rank >= n_gpus:
            raise RankLocalError(f"LOCAL_RANK: got {local_rank}; this machine has {n_gpus} GPUs, one for each process")
        torch.cuda.set_device(local_rank)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
        store=PrefixStore(f"widthwise-{start}-{next(_group_numbers)}", store),
        rank=rank,
        world_size=world_size,
        timeout=_patience_of_device(config.hang_seconds),
    )


def _patience_of_device(hang_seconds: float) -> timedelta:
    """Return the timeout of device messages: longer on a GPU, because CPU messages can name the missing rank."""
    return timedelta(seconds=hang_seconds + (60 if torch.cuda.is_available() else 0))


class Group(Processes):
    """Several processes."""

    def __init__(self, n_shards: int, hang_seconds: float):
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.n_shards = n_shards
        self._mesh = _mesh(self.device.type, torch.arange(self.world_size).view(-1, n_shards), hang_seconds)
        self.shard = self._mesh.get_local_rank(1)
        self._seconds = hang_seconds
        self._store = _get_default_store()
        self._messages = _messages(hang_seconds)  # results of work that may take one process long
        self._messages._get_backend(torch.device("cpu"))._set_default_timeout(PATIENCE)
        self._pulse = _messages(hang_seconds)  # values that all processes send at about the same time
        self._background: Group | None = None

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    def shard_model(self, model: Decoder) -> None:
        # Only the layer of an MTP head: the head shares the reduction of the slots and the output head of the model.
        for _, layer in model.named_layers():
            fully_shard(layer, mesh=self._mesh)
        fully_shard(model, mesh=self._mesh)
        for method in ("loss", "hidden", "stream", "logits"):
            register_fsdp_forward_method(model, method)

    def set_gradient_sync(self, model: Decoder, is_last: bool) -> None:
        cast(FSDPModule, model).set_requires_gradient_sync(is_last)

    def on_every_rank(self, error: E) -> E:
        setattr(error, IS_ON_EVERY_RANK, True)
        return error

    def same_on_every_rank(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except Exception as error:
            raise self.on_every_rank(error) from None

    def on_rank_zero(self, work: Callable[[], T]) -> T:
        outcome = [_attempt(work) if self.is_rank_zero else b""]
        dist.broadcast_object_list(outcome, src=0, group=self._messages)
        return self._delivered(outcome)[0]

    def all_gather(self, work: Callable[[], T]) -> list[T]:
        return self._delivered(self._exchanged(_attempt(work), self._messages))

    def _delivered(self, packed: list[bytes]) -> list[Any]:
        outcomes = [pickle.loads(content) for content in packed]  # from processes of this launch
        for outcome in outcomes:
            if isinstance(outcome, _Failure):
                raise self.on_every_rank(outcome.error)
        return outcomes

    def all_gather_tensors(self, value: T) -> list[T]:
        # Sent from the CPU; otherwise they would arrive on the device of the sender.
        values = self._exchanged(tree_map_only(Tensor, Tensor.cpu, value), self._pulse)
        return tree_map_only(Tensor, lambda tensor: tensor.to(self.device), values)

    def _exchanged(self, value: Any, group: dist.ProcessGroup) -> list[Any]:
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=group)
        return values

    def all_reduce_max(self, *numbers: float) -> list[float]:
        largest = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self._pulse)
        return largest.tolist()

    def all_reduce_sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        flat = torch.cat([tensor.detach().double().flatten() for tensor in tensors])
        dist.all_reduce(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape).to(tensor.dtype) for part, tensor in zip(parts, tensors)]

    def who_is_missing(self, error: RuntimeError) -> str:
        """Describe why a message did not arrive. Every waiting rank reports itself within a few seconds."""
        waiting = {self.rank}
        # In a thread, because a store on a lost machine never answers.
        thread = threading.Thread(target=self._collect_waiting, args=(waiting,), daemon=True)
        thread.start()
        thread.join(SECONDS_TO_ANSWER)
        missing = [rank for rank in range(self.world_size) if rank not in waiting]
        if not missing:
            return f"the connection to the other processes failed ({str(error).splitlines()[0]})"
        return (
            f"waits for process {', '.join(map(str, missing))}, which has ended or hangs (train.hang_seconds = "
            f"{self._seconds:g}); `torchrun --max-restarts` continues from the last checkpoint"
        )

    def _collect_waiting(self, waiting: set[int]) -> None:
        """Announce that this process waits, and add the other waiting ranks to `waiting`."""
        try:
            self._store.set(f"waited-{self.rank}", "")
            while len(waiting) < self.world_size:
                waiting.update(rank for rank in range(self.world_size) if self._store.check([f"waited-{rank}"]))
                time.sleep(0.1)
        except RuntimeError:
            waiting.update(range(1, self.world_size))  # the store has ended, and with it rank 0

    def for_background_thread(self) -> "Group":
        if self._background is None:
            self._background = copy(self)
            # With the short timeout: a thread that waits longer would keep its process from ending.
            self._background._messages = _messages(self._seconds)
        return self._background


def _messages(hang_seconds: float) -> dist.ProcessGroup:
    """Return a group of all processes for messages on the CPU."""
    return cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=timedelta(seconds=hang_seconds)))


def _mesh(device: str, ranks: Tensor, hang_seconds: float) -> DeviceMesh:
    """Return the mesh of a matrix of ranks. `init_device_mesh` cannot set the timeout of its groups.

    Names are unique: torch caches by mesh, and would use an equal mesh of an earlier run, whose groups are closed.
    """
    groups = [
        cast(
            dist.ProcessGroup,
            dist.new_subgroups_by_enumeration(
                rows.tolist(), timeout=_patience_of_device(hang_seconds), backend="nccl" if device == "cuda" else "gloo"
            )[0],
        )
        for rows in (ranks.T, ranks)
    ]
    number = next(_mesh_numbers)
    names = (f"replicate_{number}", f"shard_{number}")
    return DeviceMesh.from_group(groups, device, mesh=ranks, mesh_dim_names=names)


class _Failure(NamedTuple):
    """An error on its way to other processes."""

    error: Exception


def _attempt(work: Callable[[], Any]) -> bytes:
    """Return the pickled value of some work, or its error. An error that cannot be pickled becomes a RuntimeError,
    or the other processes would wait for hours."""
    try:
        return pickle.dumps(work())
    except Exception as error:
        with suppress(Exception):
            packed = pickle.dumps(_Failure(error))
            pickle.loads(packed)
            return packed
        return pickle.dumps(_Failure(RuntimeError(f"{type(error).__name__}: {error}")))
