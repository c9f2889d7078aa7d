"""Several processes started by torchrun: data parallel, FSDP2 or both (HSDP), through PyTorch's `fully_shard`.

The device mesh has the shape (world_size / n_shards, n_shards). Each row of n_shards processes holds one copy of the
model, and every process reads other rows of the batch. n_shards = 1 is data parallelism, n_shards = world_size FSDP2.
Layers are compiled first; then layers and the layers of MTP heads are sharded, then the rest. The decoder does its
activation checkpointing. Products run under autocast and weights are gathered in fp32: FSDP's bf16 policy would
round gains, and sum the gradient of the head in bf16.
"""

import os
import pickle
import re
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from datetime import timedelta
from itertools import count
from typing import Any, NamedTuple, cast

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
from widthwise.training.processes import E, Processes, T

LONG_TIMEOUT = timedelta(hours=12)
"""Longest wait for work that rank 0 does alone, such as reading a corpus."""
LOST = re.compile("timed? ?out|connection|broken pipe|reset by peer", re.IGNORECASE)
"""Matches the RuntimeError of a message that did not arrive."""
SECONDS_TO_ANSWER = 5.0
"""Time to collect the ranks that are still running."""
IS_ON_EVERY_RANK = "is_on_every_rank"
"""Attribute of an error that every rank raises."""
_join_numbers = count()
_mesh_numbers = count()
_groups: dict[tuple[int, float], "Group"] = {}
"""Groups by shards and timeout, reused because torch keeps every mesh and its connections until the process ends."""


@contextmanager
def group(config: TrainConfig) -> Iterator["Group"]:
    """Join the processes of this launch for the block, or use the group that an outer block joined.

    An error of this process alone is raised as RankLocalError.
    """
    is_outermost = not dist.is_initialized()
    key = (config.shards, config.hang_seconds)
    try:
        if is_outermost:
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
    if is_outermost:
        _groups.clear()
        leave()


def leave() -> None:
    """Wait for all processes, then close the connections: closing one may lose its last message."""
    store = _get_default_store()
    store.set(f"leaving-{dist.get_rank()}", "")
    with suppress(RuntimeError):  # the process with the store may end while others wait
        store.wait([f"leaving-{rank}" for rank in range(dist.get_world_size())])
    dist.destroy_process_group()


def _join(config: TrainConfig) -> None:
    """Initialise torch.distributed.

    The store of torchrun's agent outlives a restart of the workers and still has the addresses of dead workers, so
    its keys contain the restart count. A store in the first worker is new after each restart; its keys have no count,
    because the counts of several agents may differ.
    """
    # The warning is about in-place operations on such a view, of which there are none.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    store, rank, world_size = next(iter(rendezvous("env://", timeout=timedelta(seconds=config.hang_seconds))))
    n_restarts = "0"
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        n_restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if torch.cuda.is_available():
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        n_gpus = torch.cuda.device_count()
        if local_rank >= n_gpus:
            raise RankLocalError(f"LOCAL_RANK: got {local_rank}; this machine has {n_gpus} GPUs, one for each process")
        torch.cuda.set_device(local_rank)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
        store=PrefixStore(f"widthwise-{n_restarts}-{next(_join_numbers)}", store),
        rank=rank,
        world_size=world_size,
        timeout=_device_timeout(config.hang_seconds),
    )


def _device_timeout(hang_seconds: float) -> timedelta:
    """Return the timeout of collectives on the device.

    On a GPU it is longer than hang_seconds, so that a collective on the CPU fails first, which names the missing rank.
    """
    return timedelta(seconds=hang_seconds + (60 if torch.cuda.is_available() else 0))


class Group(Processes):
    """The processes of a launch."""

    def __init__(self, n_shards: int, hang_seconds: float):
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.n_shards = n_shards
        self._mesh = _mesh(self.device.type, torch.arange(self.world_size).view(-1, n_shards), hang_seconds)
        self.shard = self._mesh.get_local_rank(1)
        self._hang_seconds = hang_seconds
        self._store = _get_default_store()
        self._long_timeout_group = _cpu_group(hang_seconds)  # for results of work that may take one process long
        self._long_timeout_group._get_backend(torch.device("cpu"))._set_default_timeout(LONG_TIMEOUT)
        self._short_timeout_group = _cpu_group(hang_seconds)  # for values that all send at about the same time
        self._background: Group | None = None

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    def shard_model(self, model: Decoder) -> None:
        # Of an MTP head only the layer: it shares the output head, and the reduction of the slots, with the model.
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
        packed = [_attempt(work) if self.is_rank_zero else b""]
        dist.broadcast_object_list(packed, src=0, group=self._long_timeout_group)
        return self._unpack(packed)[0]

    def all_gather(self, work: Callable[[], T]) -> list[T]:
        return self._unpack(self._all_gather_object(_attempt(work), self._long_timeout_group))

    def _unpack(self, packed: list[bytes]) -> list[Any]:
        """Return the values of several `_attempt`s. Raises the first error."""
        outcomes = [pickle.loads(content) for content in packed]  # from processes of this launch
        for outcome in outcomes:
            if isinstance(outcome, _Failure):
                raise self.on_every_rank(outcome.error)
        return outcomes

    def all_gather_tensors(self, value: T) -> list[T]:
        # Sent from the CPU; otherwise they would arrive on the device of the sender.
        values = self._all_gather_object(tree_map_only(Tensor, Tensor.cpu, value), self._short_timeout_group)
        return tree_map_only(Tensor, lambda tensor: tensor.to(self.device), values)

    def _all_gather_object(self, value: Any, group: dist.ProcessGroup) -> list[Any]:
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=group)
        return values

    def all_reduce_max(self, *numbers: float) -> list[float]:
        largest = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self._short_timeout_group)
        return largest.tolist()

    def all_reduce_sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        flat = torch.cat([tensor.detach().double().flatten() for tensor in tensors])
        dist.all_reduce(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape).to(tensor.dtype) for part, tensor in zip(parts, tensors)]

    def who_is_missing(self, error: RuntimeError) -> str:
        """Describe why a message did not arrive. error: of the message.

        Names the ranks that do not announce within SECONDS_TO_ANSWER that they wait, too. Torchrun ends these at the
        death of one with a SIGTERM, which would end this process before it has named the dead one.
        """
        with suppress(ValueError):  # outside the main thread, Python allows no handlers
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        waiting = {self.rank}
        # In a thread, because a store on a lost machine never answers. A thread that calls the store while Python
        # ends would abort the process, so this one stops in time.
        thread = threading.Thread(target=self._collect_waiting, args=(waiting,), daemon=True)
        thread.start()
        thread.join(2 * SECONDS_TO_ANSWER)
        missing = [rank for rank in range(self.world_size) if rank not in waiting]
        if not missing:
            return f"the connection to the other processes failed ({str(error).splitlines()[0]})"
        return (
            f"waits for process {', '.join(map(str, missing))}, which has ended or hangs (train.hang_seconds = "
            f"{self._hang_seconds:g}); `torchrun --max-restarts` continues from the last checkpoint"
        )

    def _collect_waiting(self, waiting: set[int]) -> None:
        """Announce in the store that this process waits, and add the other waiting ranks to `waiting`."""
        end = time.monotonic() + SECONDS_TO_ANSWER
        try:
            self._store.set(f"waited-{self.rank}", "")
            while len(waiting) < self.world_size and time.monotonic() < end:
                waiting.update(rank for rank in range(self.world_size) if self._store.check([f"waited-{rank}"]))
                time.sleep(0.1)
        except RuntimeError:
            waiting.update(range(1, self.world_size))  # the store has ended, and with it rank 0

    def for_background_thread(self) -> "Group":
        if self._background is None:
            self._background = copy(self)
            # With hang_seconds: a thread that waits longer would keep its process from ending.
            self._background._long_timeout_group = _cpu_group(self._hang_seconds)
        return self._background


def _cpu_group(hang_seconds: float) -> dist.ProcessGroup:
    """Return a group of all processes for messages on the CPU."""
    return cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=timedelta(seconds=hang_seconds)))


def _mesh(device: str, ranks: Tensor, hang_seconds: float) -> DeviceMesh:
    """Return the mesh of a matrix of ranks, (n_replicas, n_shards). `init_device_mesh` cannot set a timeout.

    Names are unique: torch caches by mesh, and would use an equal mesh of an earlier run, whose groups are closed.
    """
    timeout = _device_timeout(hang_seconds)
    backend = "nccl" if device == "cuda" else "gloo"
    replicas, _ = dist.new_subgroups_by_enumeration(ranks.T.tolist(), timeout=timeout, backend=backend)
    shards, _ = dist.new_subgroups_by_enumeration(ranks.tolist(), timeout=timeout, backend=backend)
    groups = [cast(dist.ProcessGroup, replicas), cast(dist.ProcessGroup, shards)]
    number = next(_mesh_numbers)
    names = (f"replicate_{number}", f"shard_{number}")
    return DeviceMesh.from_group(groups, device, mesh=ranks, mesh_dim_names=names)


class _Failure(NamedTuple):
    """An error of `_attempt`."""

    error: Exception


def _attempt(work: Callable[[], Any]) -> bytes:
    """Return the pickled value of some work, or its error as a pickled _Failure.

    An error that cannot be pickled becomes a RuntimeError; otherwise the other processes would wait for hours.
    """
    try:
        return pickle.dumps(work())
    except Exception as error:
        with suppress(Exception):
            packed = pickle.dumps(_Failure(error))
            pickle.loads(packed)
            return packed
        return pickle.dumps(_Failure(RuntimeError(f"{type(error).__name__}: {error}")))
