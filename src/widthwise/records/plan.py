"""What `widthwise plan` predicts. Nothing in these records was measured."""

from collections.abc import Sequence

from widthwise.records.dry_run import RankMemory
from widthwise.records.record import Number, Record


class PartMemory(Record):
    """What a part of the model takes on a device, were all of it there at once."""

    part: str
    """One of `records.cost.PARTS`, or what layers that run again leave."""
    params: int
    """All its parameters, however many devices share them."""
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    cast_weight_bytes: int
    """Its matrices in bf16."""
    activation_bytes: int
    """Activations that one pass keeps."""


class Setup(Record):
    """A kind of activation checkpointing on the device."""

    activation_checkpointing: str
    micro_batch_size: int | None
    """Sequences of the largest pass that fits; None where not one does."""
    memory: RankMemory
    """With that pass, or with one sequence."""
    run_hours: Number | None
    """None for a device whose FLOPs are not known."""


class DataCost(Record):
    """What the tokens of a run take before training."""

    disk_bytes: int
    """Size of the token files."""
    text_bytes: int
    """Size of the text that they are made from, at BYTES_PER_TOKEN."""
    prepare_core_hours: Number
    """Hours of one CPU core, at TEXT_BYTES_PER_CORE_SECOND."""


class Plan(Record):
    """What a recipe takes on devices of one kind."""

    device: str
    device_memory_bytes: int
    n_devices: int
    mfu: Number | None
    """None for a device whose FLOPs are not known."""
    params: int
    parts: Sequence[PartMemory]
    """With the recipe's own pass and activation checkpointing."""
    micro_batch_size: int
    """Sequences of a pass, by the recipe."""
    memory: RankMemory
    """What a process needs with passes of that size."""
    fits: bool
    setups: Sequence[Setup]
    steps: int
    tokens: int
    tokens_per_param: Number
    training_flops: Number
    run_hours: Number | None
    """As the recipe says, on all devices."""
    asked_hours: Number | None
    data: DataCost
    remarks: Sequence[str]
