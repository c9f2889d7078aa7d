"""How a step is divided among devices: the copies of the model, the shards of a copy, the sequences of each device."""

import math
from dataclasses import dataclass

from widthwise.config_io import UserError
from widthwise.recipe.train_section import TrainConfig
from widthwise.runs.machines import DEVICES_PER_NODE


@dataclass(frozen=True)
class Layout:
    """A step on some devices, one process on each; neighbours share a copy of the model."""

    n_devices: int
    n_shards: int
    """Devices that share one copy of the model."""
    batch_size: int
    """Sequences of a step that a device has."""
    micro_batch_size: int
    """Sequences of a forward pass."""
    n_passes_each: int
    """Passes over every sequence."""

    @classmethod
    def of(cls, train: TrainConfig, n_devices: int) -> "Layout":
        """Raises UserError where one number does not divide the other."""
        if n_devices < 1:
            raise UserError(f"--devices: got {n_devices}; must be at least 1")
        batch_size = train.rows_of_process(n_devices)
        micro_batch_size = min(train.sequences_per_pass, batch_size)
        return cls(n_devices, train.shards, batch_size, micro_batch_size, train.n_passes)

    @property
    def is_alone(self) -> bool:
        """Whether nothing is divided: a process that is alone trains the plain model."""
        return self.n_devices == 1

    @property
    def n_replicas(self) -> int:
        """Copies of the model."""
        return self.n_devices // self.n_shards

    @property
    def n_passes(self) -> int:
        """Forward and backward passes of a device in a step."""
        return self.batch_size // self.micro_batch_size * self.n_passes_each

    @property
    def n_shards_in_node(self) -> int:
        """Devices of one node that share a copy."""
        return self.n_shards if self.n_devices <= DEVICES_PER_NODE else math.gcd(self.n_shards, DEVICES_PER_NODE)

    @property
    def n_replicas_in_node(self) -> int:
        """Devices of one node that hold the same shard of different copies."""
        return self.n_replicas if self.n_devices <= DEVICES_PER_NODE else DEVICES_PER_NODE // self.n_shards_in_node
