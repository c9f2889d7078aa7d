"""Costs of training a recipe on devices of one kind: memory, time, traffic and data. Nothing is trained or written."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import torch

from widthwise.computing import ActivationCheckpointing
from widthwise.data.config import DataConfig
from widthwise.data.shards import token_dtype
from widthwise.data.tokenizer import N_BYTES
from widthwise.model.recompute import RECOMPUTE
from widthwise.recipe.recipe import Recipe
from widthwise.recipe.train_section import TrainConfig
from widthwise.records.cost import DataCost, Deployment, LargestPass, Plan, RankMemory, StepTraffic
from widthwise.runs.rank_memory import ShardedModel, step_layout
from widthwise.training.devices import DEVICES_PER_NODE, Device, known_gpu

BYTES_PER_TOKEN = 4.0
"""Bytes of text per token of byte-level BPE with 32,000 to 100,000 tokens on English text, approximately."""
TEXT_BYTES_PER_CORE_SECOND = 1e6
"""Speed of `data prepare`, which reads, splits, tokenizes and writes text, on one core."""
SHARDING_ASSUMPTION = "fp32 gathered and reduced in rings"
CHEAPEST_FIRST: tuple[ActivationCheckpointing, ...] = ("none", "selective", "layer")
"""Kinds of activation checkpointing by their cost in computation."""
LAW_TOKENS_PER_PARAM = 20.0
"""Tokens per parameter of compute-optimal models, by Hoffmann et al. 2022, arXiv:2203.15556 (Chinchilla)."""


class Planner:
    """A recipe on a number of devices; for a recipe that grows, its last model."""

    def __init__(self, recipe: Recipe, n_devices: int = 1, sharded: ShardedModel | None = None):
        """sharded: default: the recipe's last model. Raises UserError for numbers that do not divide each other."""
        self.recipe = recipe
        self.layout = step_layout(recipe.train, n_devices)
        self._sharded = sharded or ShardedModel(recipe)
        self._memory_of_pass: dict[tuple[ActivationCheckpointing, int], RankMemory] = {}

    def deployment(self, device: Device | None) -> Deployment:
        """Return the layout and cost of a step. Without a device, times and fit are omitted."""
        train = self.recipe.train
        layout = self.layout
        memory = self.memory(train)
        n_tokens = layout.batch_size * self.recipe.seq_len
        n_padded = layout.n_shards * self._sharded.block_entries(layout.n_shards)
        deployment = Deployment(
            **layout.to_data(),
            padding=n_padded / self._sharded.n_params - 1,
            memory=memory,
            traffic=self._sharded.traffic(train, layout.n_devices),
            training_flops=train.flops_per_token(self.recipe.final_model, self.recipe.seq_len) * n_tokens,
        )
        if device is None:
            return deployment
        fits = memory.total_bytes <= device.memory_bytes
        times = {"communication_seconds": self._communication_seconds(device, deployment.traffic)}
        if device.peak_flops_per_second:
            flops = self._recompute_factor(train.activation_checkpointing) * deployment.training_flops
            times["compute_seconds"] = flops / device.flops_per_second
        return deployment.with_changes(
            fits=fits,
            remedy=None if fits else self._remedy(device),
            **times,
            run_hours=self.run_hours(device, train),
            setups=[self.largest_pass(device, kind) for kind in RECOMPUTE],
        )

    def memory(self, train: TrainConfig) -> RankMemory:
        """Return the memory of a device for a train section with the same batch."""
        return self._sharded.memory(train, self.layout.n_devices)

    def largest_pass(self, device: Device, kind: ActivationCheckpointing) -> LargestPass:
        """Return the largest pass that fits with a kind of activation checkpointing; if none fits, one sequence."""
        n = self.layout.batch_size
        while True:
            train = self.recipe.train.model_copy(update={"activation_checkpointing": kind, "micro_batch_size": n})
            if (kind, n) not in self._memory_of_pass:
                self._memory_of_pass[kind, n] = self.memory(train)
            memory = self._memory_of_pass[kind, n]
            fits = memory.total_bytes <= device.memory_bytes
            if fits or n == 1:
                break
            n = max(divisor for divisor in range(1, n) if self.layout.batch_size % divisor == 0)
        return LargestPass(
            activation_checkpointing=kind,
            micro_batch_size=n if fits else None,
            memory=memory,
            run_hours=self.run_hours(device, train),
        )

    def run_hours(self, device: Device, train: TrainConfig) -> float | None:
        """Return the hours of the whole run, limited by computation or by reading and writing weights in memory.

        None if the FLOPs of the device are unknown. Communication is excluded.
        """
        if not device.peak_flops_per_second:
            return None
        work = self._recompute_factor(train.activation_checkpointing)
        seconds = work * self.recipe.training_flops / self.layout.n_devices / device.flops_per_second
        if device.memory_bytes_per_second:
            n_bytes = self._sharded.weight_traffic_bytes(train, self.layout.n_devices)
            seconds = max(seconds, train.steps * n_bytes / device.memory_bytes_per_second)
        return seconds / 3600

    def _communication_seconds(self, device: Device, traffic: StepTraffic) -> float | None:
        """Return the time of a step's collectives; None for a device of unknown bandwidths."""
        layout = self.layout
        n_shards_in_node = layout.n_shards
        n_replicas_in_node = layout.n_replicas
        if layout.n_devices > DEVICES_PER_NODE:
            n_shards_in_node = math.gcd(layout.n_shards, DEVICES_PER_NODE)
            n_replicas_in_node = DEVICES_PER_NODE // n_shards_in_node
        shard_bandwidth = device.ring_bytes_per_second(layout.n_shards, n_shards_in_node)
        replica_bandwidth = device.ring_bytes_per_second(layout.n_replicas, n_replicas_in_node)
        if not (shard_bandwidth and replica_bandwidth):
            return None
        shard_bytes = traffic.all_gather_bytes + traffic.reduce_scatter_bytes + traffic.broadcast_bytes
        return shard_bytes / shard_bandwidth + traffic.all_reduce_bytes / replica_bandwidth

    def _recompute_factor(self, kind: ActivationCheckpointing) -> float:
        """Return the FLOPs that a device computes divided by the training FLOPs; above 1 with recomputed layers."""
        model = self.recipe.final_model
        seq_len = self.recipe.seq_len
        return 1 + RECOMPUTE[kind].repeated_flops(model, seq_len) / model.cost().training_flops(seq_len)

    def _remedy(self, device: Device) -> str | None:
        """Return the overrides of the smallest change that makes the recipe fit; None if no change does.

        One override is tried before two, and two before three. Their order is by cost: more shards and smaller passes
        cost traffic, recomputed layers cost computation.
        """
        train = self.recipe.train
        layout = self.layout
        kinds = CHEAPEST_FIRST[CHEAPEST_FIRST.index(train.activation_checkpointing) + 1 :]
        options: list[list[dict[str, Any]]] = [
            [{"shards": n} for n in range(layout.n_shards + 1, layout.n_devices + 1) if layout.n_devices % n == 0],
            [{"micro_batch_size": n} for n in range(layout.micro_batch_size - 1, 0, -1) if layout.batch_size % n == 0],
            [{"activation_checkpointing": kind} for kind in kinds],
        ]
        for n_changes in (1, 2, 3):
            for lists in combinations(options, n_changes):
                for changes in product(*lists):
                    update = {key: value for change in changes for key, value in change.items()}
                    if self.memory(train.model_copy(update=update)).total_bytes <= device.memory_bytes:
                        return " ".join(f"train.{key}={value}" for key, value in update.items())
        return None


def plan(recipe: Recipe, n_devices: Sequence[int], device: Device | None = None, days: float | None = None) -> Plan:
    """Return the prediction for each number of devices; for a recipe that grows, with its last model.

    device: None omits times and fit. days: limit for the time of the run. Raises UserError for a recipe that `train`
    refuses, and for numbers that do not divide each other.
    """
    recipe.check()
    model = ShardedModel(recipe)
    planners = [Planner(recipe, n, model) for n in n_devices]
    return Plan(
        device=None if device is None else device.name,
        device_memory_bytes=None if device is None else device.memory_bytes,
        mfu=device.mfu if device is not None and device.peak_flops_per_second else None,
        assumptions=SHARDING_ASSUMPTION if device is None else f"{device.assumptions}; {SHARDING_ASSUMPTION}",
        params=model.n_params,
        steps=recipe.train.steps,
        tokens=recipe.n_tokens,
        tokens_per_param=recipe.n_tokens / model.n_params,
        training_flops=recipe.training_flops,
        asked_hours=None if days is None else 24 * days,
        deployments=[planner.deployment(device) for planner in planners],
        data=_data_cost(recipe),
    )


def local_device() -> Device | None:
    """Return the GPU of this machine; None on a CPU. Its memory is the smaller of driver and data sheet."""
    if not torch.cuda.is_available():
        return None
    name = torch.cuda.get_device_name()
    n_bytes = torch.cuda.get_device_properties(0).total_memory
    device = known_gpu(name) or Device(name)
    return replace(device, memory_bytes=min(n_bytes, device.memory_bytes or n_bytes))


def _data_cost(recipe: Recipe) -> DataCost:
    """Return the disk space of a recipe's tokens, and the work of preparing them.

    The size of a token on disk depends on the vocabulary: the model's, unless the tokenizer is `bytes` or `bpe-N`.
    """
    spec = recipe.data.tokenizer if isinstance(recipe.data, DataConfig) else None
    vocab_size = recipe.final_model.vocab_size
    if spec == "bytes":
        vocab_size = N_BYTES + 1
    elif match := re.fullmatch(r"bpe-(\d+)", spec or ""):
        vocab_size = int(match[1])
    text_bytes = round(BYTES_PER_TOKEN * recipe.n_tokens)
    return DataCost(
        disk_bytes=recipe.n_tokens * token_dtype(vocab_size).itemsize,
        text_bytes=text_bytes,
        prepare_core_hours=text_bytes / TEXT_BYTES_PER_CORE_SECOND / 3600,
    )
