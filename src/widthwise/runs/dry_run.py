"""What a run would take on some numbers of devices, predicted from the recipe. Nothing is trained or written."""

from collections.abc import Sequence

from widthwise.computing import ActivationCheckpointing
from widthwise.model.config import ModelConfig
from widthwise.model.recompute import RECOMPUTE
from widthwise.recipe.recipe import Recipe
from widthwise.recipe.train_section import TrainConfig
from widthwise.records.dry_run import Deployment, DryRun, StepTraffic, Times, UnitSize
from widthwise.runs.layout import Layout
from widthwise.runs.machines import Machines
from widthwise.runs.rank_memory import FP32_BYTES, ShardedModel
from widthwise.runs.remedy import remedies

SHARDING = "fp32 gathered and reduced in rings"


def dry_run(recipe: Recipe, n_devices: Sequence[int], machines: Machines | None = None) -> DryRun:
    """The prediction for each number of devices; for a recipe that grows, with its last model.

    machines: None leaves times out, and whether it fits. Raises UserError for whatever `train` would refuse in the
    recipe, and for numbers that do not divide each other.
    """
    recipe.check()
    layouts = [Layout.of(recipe.train, n) for n in n_devices]
    model = ShardedModel.of(recipe)
    predictor = _Predictor(recipe, model, machines)
    return DryRun(
        params=model.n_params,
        units=[
            UnitSize(name=unit.name, params=unit.n_params, gathered_bytes=FP32_BYTES * unit.n_params)
            for unit in model.units
        ],
        assumptions=SHARDING if machines is None else f"{machines}; {SHARDING}",
        device=None if machines is None else machines.name,
        device_memory_bytes=None if machines is None else machines.memory_bytes,
        deployments=[predictor.deployment(layout) for layout in layouts],
    )


def work(model: ModelConfig, seq_len: int, kind: ActivationCheckpointing) -> float:
    """FLOPs that a device computes over those that training needs, which layers that run again make more."""
    return 1 + RECOMPUTE[kind].repeated_flops(model, seq_len) / model.cost().training_flops(seq_len)


class _Predictor:
    def __init__(self, recipe: Recipe, model: ShardedModel, machines: Machines | None):
        self._recipe, self._train, self._model, self._machines = recipe, recipe.train, model, machines
        config, seq_len = recipe.final_model, recipe.seq_len
        self._flops_per_token = recipe.train.flops_per_token(config, seq_len)
        self._work = work(config, seq_len, recipe.train.activation_checkpointing)

    def deployment(self, layout: Layout) -> Deployment:
        n_tokens = layout.batch_size * self._recipe.seq_len
        memory, traffic = self._model.memory(self._train, self._recipe.seq_len, layout), self._model.traffic(layout)
        found = Deployment(
            n_devices=layout.n_devices,
            n_shards=layout.n_shards,
            batch_size=layout.batch_size,
            micro_batch_size=layout.micro_batch_size,
            n_passes=layout.n_passes,
            padding=layout.n_shards * self._model.block_entries(layout.n_shards) / self._model.n_params - 1,
            memory=memory,
            traffic=traffic,
            training_flops=self._flops_per_token * n_tokens,
        )
        if self._machines is None:
            return found
        return found.with_changes(
            times=self._times(layout, found.training_flops, traffic, self._machines),
            fits=memory.total_bytes <= self._machines.memory_bytes,
            remedy=self._remedy(layout, self._machines) if memory.total_bytes > self._machines.memory_bytes else None,
        )

    def _remedy(self, layout: Layout, machines: Machines) -> str | None:
        def needed(train: TrainConfig) -> int:
            return self._model.memory(train, self._recipe.seq_len, Layout.of(train, layout.n_devices)).total_bytes

        changes = remedies(self._train, layout)
        return next((change for change, train in changes if needed(train) <= machines.memory_bytes), None)

    def _times(self, layout: Layout, flops: float, traffic: StepTraffic, machines: Machines) -> Times:
        within_copy = machines.ring_bytes_per_second(layout.n_shards, layout.n_shards_in_node)
        over_copies = machines.ring_bytes_per_second(layout.n_replicas, layout.n_replicas_in_node)
        shared = traffic.all_gather_bytes + traffic.reduce_scatter_bytes + traffic.broadcast_bytes
        run_seconds = self._work * self._recipe.training_flops / layout.n_devices / machines.flops_per_second
        return Times(
            compute_seconds=self._work * flops / machines.flops_per_second,
            communication_seconds=shared / within_copy + traffic.all_reduce_bytes / over_copies,
            run_days=run_seconds / 86400,
        )
