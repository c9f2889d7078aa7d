"""The machines that a prediction assumes: GPUs in nodes of eight, and what connects them."""

import math
from dataclasses import dataclass
from typing import Self

from widthwise.config_io import UserError
from widthwise.runs.devices import DEFAULT_MFU, Device, checked_mfu

DEVICES_PER_NODE = 8


@dataclass(frozen=True)
class Machines:
    """Devices of one kind. The bandwidths are what a device sends; a link carries as much in the other direction."""

    name: str
    memory_bytes: int
    """See `devices.Device`; the room that is left takes the buffers of NCCL too."""
    node_bytes_per_second: float
    """To the other devices of its node."""
    network_bytes_per_second: float
    """To other nodes."""
    mfu: float = DEFAULT_MFU
    """The share of the dense bf16 peak that training uses."""

    @classmethod
    def named(cls, name: str, mfu: float | None = None, bandwidths: tuple[float, float] | None = None) -> Self:
        """The machines of a GPU, in upper or lower case.

        bandwidths: bytes per second in a node and between nodes, instead of the data sheet's. Raises UserError.
        """
        known = next((each for each in MACHINES if each.name.casefold() == name.casefold()), None)
        if known is None:
            raise UserError(f"--device: got {name!r}; allowed: {', '.join(each.name for each in MACHINES)}")
        node, network = bandwidths or (known.node_bytes_per_second, known.network_bytes_per_second)
        if not all(0 < each < math.inf for each in (node, network)):
            raise UserError(f"--bandwidth: got {node / 1e9:g},{network / 1e9:g}; must be two numbers above 0")
        return cls(known.name, known.memory_bytes, node, network, checked_mfu(mfu))

    @property
    def peak_flops_per_second(self) -> float:
        peak = Device.named(self.name).peak_flops_per_second
        assert peak is not None
        return peak

    @property
    def flops_per_second(self) -> float:
        """What training uses of the peak."""
        return self.mfu * self.peak_flops_per_second

    def ring_bytes_per_second(self, n_devices: int, n_in_node: int) -> float:
        """What a device sends in a ring of n_devices, n_in_node of them in each node.

        A ring leaves a node at one place only, so several rings use the network of all its devices at once.
        """
        if n_devices <= n_in_node:
            return self.node_bytes_per_second
        return min(self.node_bytes_per_second, n_in_node * self.network_bytes_per_second)

    def __str__(self) -> str:
        node, network = self.node_bytes_per_second / 1e9, self.network_bytes_per_second / 1e9
        peak = self.peak_flops_per_second / 1e12
        return (
            f"{self.name} at {self.mfu:.0%} of {peak:g} TFLOP/s, each sending {node:g} GB/s in a node of "
            f"{DEVICES_PER_NODE} and {network:g} GB/s between nodes"
        )


def _known(name: str, node_gigabytes_per_second: float, network_gigabytes_per_second: float) -> Machines:
    memory_bytes = Device.named(name).memory_bytes
    return Machines(name, memory_bytes, node_gigabytes_per_second * 1e9, network_gigabytes_per_second * 1e9)


MACHINES = (_known("A100", 300, 25), _known("H100", 450, 50), _known("H200", 450, 50), _known("B200", 900, 50))
"""By NVIDIA's data sheets of the DGX systems A100 (80 GB), H100, H200 and B200: half of the NVLink bandwidth, which is
given for both directions, and one InfiniBand port a GPU, of 200 Gb/s, later 400 Gb/s."""
