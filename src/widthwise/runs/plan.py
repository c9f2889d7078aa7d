"""What a recipe takes on devices of a kind: memory by part, what fits, time, data. Nothing is trained."""

from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass

from widthwise.computing import ActivationCheckpointing
from widthwise.data.shards import token_dtype
from widthwise.model.axes import Linear
from widthwise.model.config import ModelConfig
from widthwise.model.parts import part_of
from widthwise.model.recompute import RECOMPUTE
from widthwise.model.sharded_units import block_entries
from widthwise.recipe.recipe import Recipe
from widthwise.recipe.train_section import TrainConfig
from widthwise.records.cost import PARTS
from widthwise.records.dry_run import RankMemory
from widthwise.records.plan import DataCost, PartMemory, Plan, Setup
from widthwise.runs.devices import DEFAULT_MFU, Device, known_with
from widthwise.runs.dry_run import work
from widthwise.runs.layout import Layout
from widthwise.runs.rank_memory import BF16_BYTES, FP32_BYTES, ShardedModel
from widthwise.runs.remarks import known_tokenizer, remarks

BYTES_PER_TOKEN = 4.0
"""Text behind a token: about what byte-level BPE of 32,000 to 100,000 tokens reaches on English text."""
TEXT_BYTES_PER_CORE_SECOND = 1e6
"""What `data prepare` reads, splits, tokenizes and writes on one core."""
RUNS_AGAIN = "input of layers that run again"


def plan(
    recipe: Recipe,
    device: Device,
    n_devices: int = 1,
    mfu: float | None = None,
    days: float | None = None,
) -> Plan:
    """The prediction; for a recipe that grows, with its last model.

    mfu: share of the device's peak that training uses; days: what the run may take. Raises UserError for numbers that
    do not divide each other. What `train` would refuse is among the remarks.
    """
    return Planner(recipe, device, n_devices, mfu).plan(days)


def hours_on_known(
    recipe: Recipe, memory_bytes: int, n_devices: int = 1, mfu: float | None = None
) -> list[tuple[str, float]]:
    """The devices by name that have about so much memory, and the hours of a run on each, fastest first."""
    devices = known_with(memory_bytes)
    if not devices:
        return []
    planner = Planner(recipe, devices[0], n_devices, mfu)
    hours = [(device.name, planner.on(device).run_hours(recipe.train)) for device in devices]
    return sorted([(name, found) for name, found in hours if found is not None], key=lambda pair: pair[1])


def setups_on(recipe: Recipe, devices: Sequence[Device]) -> list[Setup]:
    """What fits on one device of each kind with the recipe's own activation checkpointing."""
    planner = Planner(recipe, devices[0], 1, None)
    return [planner.on(device).setup(recipe.train.activation_checkpointing) for device in devices]


@dataclass
class Planner:
    """A recipe on devices of a kind."""

    recipe: Recipe
    device: Device
    n_devices: int
    mfu: float | None

    def __post_init__(self) -> None:
        self._rate = self.device.rate(self.mfu)
        self._sharded = ShardedModel.of(self.recipe)
        self._layout = Layout.of(self.recipe.train, self.n_devices)
        self._memory_of_pass: dict[tuple[ActivationCheckpointing, int], RankMemory] = {}

    def on(self, device: Device) -> "Planner":
        """The same recipe on as many devices of another kind; what was counted is not counted anew."""
        other = copy(self)
        other.device, other._rate = device, device.rate(self.mfu)
        return other

    def plan(self, days: float | None) -> Plan:
        """See `plan`."""
        recipe, model = self.recipe, self.recipe.final_model
        memory = self.memory(recipe.train)
        setups, tokenizer = [self.setup(kind) for kind in RECOMPUTE], known_tokenizer(recipe)
        return Plan(
            device=self.device.name,
            device_memory_bytes=self.device.memory_bytes,
            n_devices=self.n_devices,
            mfu=None if self._rate is None else DEFAULT_MFU if self.mfu is None else self.mfu,
            params=self._sharded.n_params,
            parts=list(self._parts(model)),
            micro_batch_size=self._layout.micro_batch_size,
            memory=memory,
            fits=memory.total_bytes <= self.device.memory_bytes,
            setups=setups,
            steps=recipe.train.steps,
            tokens=recipe.n_tokens,
            tokens_per_param=recipe.n_tokens / self._sharded.n_params,
            training_flops=recipe.training_flops,
            run_hours=self.run_hours(recipe.train),
            asked_hours=None if days is None else 24 * days,
            data=data_cost(recipe.n_tokens, tokenizer[1] if tokenizer else model.vocab_size),
            remarks=list(remarks(recipe)),
        )

    def memory(self, train: TrainConfig) -> RankMemory:
        """What a device holds, with a train section of the same batch."""
        return self._sharded.memory(train, self.recipe.seq_len, Layout.of(train, self.n_devices))

    def setup(self, kind: ActivationCheckpointing) -> Setup:
        """The largest pass that fits with a kind of activation checkpointing."""
        rows = self._layout.batch_size
        train = self.recipe.train.model_copy(update={"activation_checkpointing": kind})
        for n in range(rows, 0, -1):
            if rows % n:
                continue
            sized = train.model_copy(update={"micro_batch_size": n})
            if (memory := self._memory_of_pass.get((kind, n))) is None:
                memory = self._memory_of_pass[kind, n] = self.memory(sized)
            if memory.total_bytes <= self.device.memory_bytes or n == 1:
                fits = memory.total_bytes <= self.device.memory_bytes
                return Setup(
                    activation_checkpointing=kind,
                    micro_batch_size=n if fits else None,
                    memory=memory,
                    run_hours=self.run_hours(sized),
                )
        raise AssertionError("a pass has at least one sequence")

    def run_hours(self, train: TrainConfig) -> float | None:
        """Hours to compute the whole run, or to move its weights through the device's memory if that takes longer."""
        if self._rate is None:
            return None
        recipe = self.recipe
        flops = work(recipe.final_model, recipe.seq_len, train.activation_checkpointing) * recipe.training_flops
        seconds = flops / self.n_devices / self._rate
        if self.device.memory_bytes_per_second is not None:
            n_bytes = self._sharded.weight_traffic_bytes(Layout.of(train, self.n_devices))
            seconds = max(seconds, train.steps * n_bytes / self.device.memory_bytes_per_second)
        return seconds / 3600

    def _parts(self, config: ModelConfig) -> Iterator[PartMemory]:
        train, n_shards = self.recipe.train, self._layout.n_shards
        is_bf16, whole = train.precision != "fp32", self._layout.n_passes > 1
        counted = _entries_by_part(self._sharded, n_shards)
        kept = RECOMPUTE[train.activation_checkpointing].kept_by_part(config)
        size, n_tokens = BF16_BYTES if is_bf16 else FP32_BYTES, self._layout.micro_batch_size * self.recipe.seq_len
        for part in (*PARTS, None):
            params, held, state, cast = (entries[part] for entries in counted)
            activation_bytes = round(n_tokens * kept[part].activation_bytes(size)) if part in kept else 0
            if params or activation_bytes:
                yield PartMemory(
                    part=part or RUNS_AGAIN,
                    params=params,
                    parameter_bytes=FP32_BYTES * held,
                    gradient_bytes=FP32_BYTES * (params if whole else held),
                    optimizer_bytes=FP32_BYTES * state,
                    cast_weight_bytes=BF16_BYTES * cast if is_bf16 else 0,
                    activation_bytes=activation_bytes,
                )


def _entries_by_part(sharded: ShardedModel, n_shards: int) -> tuple[Counter[str | None], ...]:
    """By part: all parameters; those of a device; its optimizer's numbers; the matrices that bf16 copies."""
    params, held, state, cast = (Counter[str | None]() for _ in range(4))
    model = sharded.model
    matrices = {module.weight for module in model.modules() if isinstance(module, Linear)} - {model.head.weight}
    for name, parameter in model.named_parameters():
        part, own = part_of(name), block_entries(parameter.shape, n_shards)
        params[part] += parameter.numel()
        held[part] += own
        state[part] += own if sharded.has_momentum_alone(parameter) else 2 * own
        cast[part] += parameter.numel() if parameter in matrices else 0
    return params, held, state, cast


def data_cost(n_tokens: int, vocab_size: int) -> DataCost:
    """What so many tokens take on disk, and to prepare. vocab_size: of the tokenizer."""
    text_bytes = round(BYTES_PER_TOKEN * n_tokens)
    return DataCost(
        disk_bytes=n_tokens * token_dtype(vocab_size).itemsize,
        text_bytes=text_bytes,
        prepare_core_hours=text_bytes / TEXT_BYTES_PER_CORE_SECOND / 3600,
    )
