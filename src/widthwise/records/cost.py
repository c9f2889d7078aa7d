"""The cost of a model, counted from its config, and the predictions of `plan`. No value is measured."""

from collections.abc import Mapping, Sequence
from typing import Self

import pydantic

from widthwise.records.record import Number, Record

PARTS = ("embedding", "attention", "ffn", "norm", "residual", "head", "mtp")
"""The parts of a model, in the order in which tables list them."""


class FlopsPerToken(Record):
    """Floating-point operations per token; attention is counted in full, except in `forward_causal`."""

    forward: Number
    training: Number
    training_mtp: Number | None = None
    """The part of `training` that is multi-token prediction."""
    forward_causal: Number | None = None


class CostSummary(Record):
    """Sizes and costs of a model; lists hold one entry per layer.

    Total parameters, training FLOPs and activations include multi-token prediction; active parameters, KV bytes and
    forward FLOPs do not, except that `flops_by_part` lists its forward FLOPs too.
    """

    d_model: int
    residual: str | None = None
    stream_width: int | None = None
    virtual_width: Number = 1.0
    """Width of a stream of slots divided by d_model; 1 without slots."""
    n_slots: int | None = None
    slot_width: int | None = None
    n_mtp_depths: int = 0
    n_layers: int | None = None
    vocab_size: int | None = None
    seq_len: int | None = None
    widths: Sequence[int]
    average_width: Number
    n_heads: Sequence[int] = ()
    n_kv_heads: Sequence[int] = ()
    head_dim: Sequence[int] = ()
    hidden_widths: Sequence[Sequence[int]] = ()
    """Widths of the gated maps of each layer's feed-forward."""
    params: Mapping[str, Number]
    """Parameters: `total`, `active`, one entry for each of PARTS, and `dead`, whose gradient is always 0."""
    flops_per_token: FlopsPerToken
    flops_by_part: Mapping[str, Number] = pydantic.Field(default_factory=dict)
    """Forward FLOPs per token by part, including multi-token prediction."""
    kv_bytes_per_token: Number
    activation_bytes_per_token: Number | None = None

    @pydantic.model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if not self.widths or min(self.widths) <= 0:
            raise ValueError("widths: expected at least one layer and widths above 0")
        for key in ("n_heads", "n_kv_heads", "head_dim", "hidden_widths"):
            n_entries = len(getattr(self, key))
            if n_entries not in (0, len(self.widths)):
                raise ValueError(f"{key}: got {n_entries} entries for {len(self.widths)} layers")
        if "total" not in self.params:
            raise ValueError("params: 'total' is missing")
        return self

    @property
    def is_uniform(self) -> bool:
        """True if all layers are equally wide."""
        return len(set(self.widths)) == 1

    @property
    def layer_params(self) -> Number | None:
        """Parameters of the layers without norms; None if one part is missing."""
        parts = ("attention", "ffn", "residual")
        return sum(self.params[part] for part in parts) if set(parts) <= self.params.keys() else None

    @property
    def dead_params(self) -> Number | None:
        """Parameters whose gradient is always 0; None without any."""
        return self.params.get("dead") or None


class RankMemory(Record):
    """Memory of a process at one moment of a step, in bytes; `total_bytes` is the sum of the other fields."""

    moment: str
    """The loss, the update, or the layer or MTP head that the backward pass has reached."""
    parameter_bytes: int
    """Its shards of the parameters, in fp32, padding included."""
    gradient_bytes: int
    """Its shards of the gradients computed so far; if a step has several passes, all gradients, which stay unsharded
    until the last pass."""
    optimizer_bytes: int
    """The optimizer's state for its shards of the parameters."""
    root_bytes: int
    """Parameters outside layers, gathered from the forward pass to the end of the backward pass."""
    cast_weight_bytes: int
    """Gathered matrices of layers in bf16, which autograd keeps from forward to backward; 0 in fp32."""
    activation_bytes: int
    """Other tensors that autograd keeps for one pass, by the cost model; in the backward pass of a layer also its
    recomputed activations and their gradients."""
    buffer_bytes: int
    """Temporary tensors: gathered layers with their gradients, or if these need more, the logits and weight gradient of
    the loss. Also the masks of documents if `data` sets them, and after a growth that freezes old entries a mask of all
    entries and, in the update, the old weights."""
    teacher_bytes: int = 0
    """Weights of a teacher, sharded like the student's; in its forward pass also activations, in the loss logits."""

    @pydantic.computed_field
    @property
    def total_bytes(self) -> int:
        return sum(getattr(self, name) for name in type(self).model_fields if name != "moment")


class StepTraffic(Record):
    """Bytes that a process sends in a step, with ring algorithms."""

    all_gather_bytes: int
    reduce_scatter_bytes: int
    all_reduce_bytes: int
    broadcast_bytes: int
    """Muon's updates: one process orthogonalises each matrix. Gathering the matrix counts as `all_gather_bytes`."""


class LargestPass(Record):
    """The largest forward and backward pass that fits on a device with one kind of activation checkpointing."""

    activation_checkpointing: str
    micro_batch_size: int | None
    """Sequences of the largest pass that fits; None if not even one sequence does."""
    memory: RankMemory
    """Memory with that pass, or with one sequence if none fits."""
    run_hours: Number | None
    """None if the FLOPs of the device are unknown."""


class Layout(Record):
    """Division of a step among devices with one process each. Processes with neighbouring ranks share a replica."""

    n_devices: int
    n_shards: int
    """Processes that share one replica, a copy of the model."""
    batch_size: int
    """Sequences of a process in a step."""
    micro_batch_size: int
    """Sequences of a forward pass."""
    n_passes: int
    """Forward and backward passes of a process in a step."""

    @property
    def n_replicas(self) -> int:
        return self.n_devices // self.n_shards


class Deployment(Layout):
    """A run on some number of devices."""

    padding: float
    """Padding of the parameters divided by the parameters."""
    memory: RankMemory
    traffic: StepTraffic
    training_flops: Number
    """FLOPs of a process in a step."""
    fits: bool | None = None
    """True if `memory` fits on the device; None without a device."""
    remedy: str | None = None
    """Overrides of the smallest change that makes the run fit; None if it fits, or if no change helps."""
    compute_seconds: Number | None = None
    """Computation of a step; None if the FLOPs of the device are unknown."""
    communication_seconds: Number | None = None
    """Communication of a step; None if a bandwidth of the device is unknown. A step takes the longer of the two times
    if communication overlaps computation, otherwise their sum."""
    run_hours: Number | None = None
    """Computation of all steps, without communication."""
    setups: Sequence[LargestPass] = ()
    """The largest passes, by kind of activation checkpointing; empty without a device."""


class DataCost(Record):
    """Cost of preparing the tokens of a run before training."""

    disk_bytes: int
    """Size of the token files."""
    text_bytes: int
    """Size of the text of these tokens, at `runs.plan.BYTES_PER_TOKEN`."""
    prepare_core_hours: Number
    """Hours of one CPU core, at `runs.plan.TEXT_BYTES_PER_CORE_SECOND`."""


class Plan(Record):
    """Predicted cost of a recipe on several numbers of devices of one kind."""

    device: str | None
    """None if no device was given: the plan then has neither times nor fit."""
    device_memory_bytes: int | None
    mfu: Number | None
    """None if the FLOPs of the device are unknown."""
    assumptions: str
    """Rates of the device, and how processes communicate."""
    params: int
    steps: int
    tokens: int
    tokens_per_param: Number
    training_flops: Number
    asked_hours: Number | None
    """Requested limit for the time of the run (`--days`); None without a limit."""
    deployments: Sequence[Deployment]
    data: DataCost
