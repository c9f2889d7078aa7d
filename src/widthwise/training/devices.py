"""Devices: memory, peak FLOPs and bandwidths, from data sheets or the user."""

import math
import re
from dataclasses import dataclass, replace
from typing import Any

from widthwise.mistakes import UserError

DEFAULT_MFU = 0.4
NEEDS_SPEED = "--days: needs a speed, which a memory size does not have; name a device, or give --tflops"
DEVICES_PER_NODE = 8
UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kKMGT]i?B)")
"""A number and a unit, as in 24GB."""
OPTIONS = {
    "memory": "memory_bytes",
    "tflops": "peak_flops_per_second",
    "memory_bandwidth": "memory_bytes_per_second",
    "node_bandwidth": "node_bytes_per_second",
    "network_bandwidth": "network_bytes_per_second",
}
"""Option of `plan` -> the field of a device that it replaces."""


@dataclass(frozen=True)
class Device:
    """An accelerator. A number is 0 if unknown; then nothing is predicted from it."""

    name: str
    memory_bytes: int = 0
    """From the data sheet, in gigabytes of 10^9 bytes. Drivers show up to 7% more, which leaves room for the CUDA
    context, NCCL buffers and library workspaces."""
    peak_flops_per_second: float = 0
    """Peak of dense bf16 matrix products with fp32 sums."""
    memory_bytes_per_second: float = 0
    node_bytes_per_second: float = 0
    """Bandwidth to the other devices of the node, in each direction."""
    network_bytes_per_second: float = 0
    """Bandwidth to other nodes, in each direction."""
    mfu: float = DEFAULT_MFU
    """The share of the peak that training uses."""

    @classmethod
    def from_options(cls, device: str | None, mfu: float | None = None, **changes: str | float | None) -> "Device":
        """Return the device that the options of `plan` describe. Raises UserError for an invalid option.

        device: a name, in upper or lower case, with or without spaces, or a memory size. changes: values for keys of
        OPTIONS, which replace numbers of the data sheet; tflops in TFLOP/s, the others as text with a unit.
        """
        if device is None and changes.get("memory") is None:
            raise UserError("--device: is required; give a name, as rtx4090, or a memory, as 24GB")
        key = _key(device or "")
        similar = [preset for preset in WITH_MEMORY if key and _key(preset.name).startswith(key)]
        exact = [preset for preset in similar if _key(preset.name) == key]
        if device is None or SIZE.fullmatch(device) or (device[:1].isdigit() and not similar):
            # With --memory, a device without a known name needs no size.
            result = cls("the device", 0 if changes.get("memory") else parse_bytes("--device", device or ""))
        elif exact:
            result = exact[0]
        else:
            allowed = ", ".join(preset.name for preset in similar or WITH_MEMORY)
            otherwise = "for any other: its memory, as 24GB, and --tflops"
            raise UserError(f"--device: got {device!r}; allowed: {allowed}; {otherwise}")
        if mfu is not None and not 0 < mfu <= 1:
            raise UserError(f"--mfu: got {mfu:g}; must be above 0 and at most 1")
        numbers: dict[str, Any] = {}
        for name, value in changes.items():
            if isinstance(value, str):
                numbers[OPTIONS[name]] = parse_bytes(f"--{name.replace('_', '-')}", value.removesuffix("/s"))
            elif value is not None:
                if not 0 < value < math.inf:
                    raise UserError(f"--{name}: got {value:g}; must be a number above 0")
                numbers[OPTIONS[name]] = 1e12 * value
        return replace(result, mfu=DEFAULT_MFU if mfu is None else mfu, **numbers)

    @property
    def flops_per_second(self) -> float:
        """FLOPs per second of training."""
        return self.mfu * self.peak_flops_per_second

    @property
    def assumptions(self) -> str:
        """`H100 at 40% of 989 TFLOP/s`, with the bandwidths to other devices."""
        text = self.name
        if self.peak_flops_per_second:
            text += f" at {self.mfu:.0%} of {self.peak_flops_per_second / 1e12:g} TFLOP/s"
        if self.node_bytes_per_second:
            text += f", sending {self.node_bytes_per_second / 1e9:g} GB/s in a node of {DEVICES_PER_NODE}"
            text += f" and {self.network_bytes_per_second / 1e9:g} GB/s between nodes"
        return text

    def ring_bytes_per_second(self, n_devices: int, n_in_node: int) -> float:
        """Return the bytes per second that a device sends in a ring collective of n_devices, n_in_node in each node.

        One ring leaves a node through one device, so several rings run at once, to use the network ports of all
        devices of the node.
        """
        if n_devices <= n_in_node:
            return self.node_bytes_per_second
        return min(self.node_bytes_per_second, n_in_node * self.network_bytes_per_second)


def parse_bytes(option: str, text: str) -> int:
    """Parse a size: "24GB" -> 24 * 10**9. Raises UserError, which names the option."""
    match = SIZE.fullmatch(text)
    if match is None or match[2] not in UNITS or not 0 < float(match[1]) < math.inf:
        raise UserError(f"{option}: got {text!r}; expected a size above 0 such as 24GB or 80GiB")
    return round(float(match[1]) * UNITS[match[2]])


def _key(name: str) -> str:
    """Return the name without spaces, case and a leading RTX."""
    return re.sub(r"[ _-]", "", name.casefold()).removeprefix("rtx")


def _device(name: str, memory: float, bandwidth: float, tflops: float, node: float = 0, network: float = 0) -> Device:
    """Return a device. memory: GB; bandwidth, node, network: GB/s; tflops: TFLOP/s."""
    return Device(name, round(memory * 1e9), tflops * 1e12, bandwidth * 1e9, node * 1e9, network * 1e9)


DEVICES = (
    _device("T4", 16, 320, 8.1),
    _device("V100", 32, 900, 15.7),
    _device("A10", 24, 600, 125),
    _device("L4", 24, 300, 121),
    _device("L40S", 48, 864, 362),
    _device("A6000", 48, 768, 154.8),
    _device("RTX 6000 Ada", 48, 960, 364.2),
    _device("A100", 80, 2039, 312, node=300, network=25),
    _device("H100", 80, 3350, 989, node=450, network=50),
    _device("H200", 141, 4800, 989, node=450, network=50),
    _device("B200", 180, 8000, 2250, node=900, network=50),
    _device("MI300X", 192, 5300, 1307.4, node=448, network=50),
    _device("RTX 3060", 12, 360, 25.5),
    _device("RTX 3090", 24, 936, 71),
    _device("RTX 4060 Ti 8GB", 8, 288, 44.1),
    _device("RTX 4060 Ti 16GB", 16, 288, 44.1),
    _device("RTX 4070", 12, 504, 58.3),
    _device("RTX 4080", 16, 717, 97.5),
    _device("RTX 4090", 24, 1008, 165.2),
    _device("RTX 5080", 16, 960, 112.6),
    _device("RTX 5090", 32, 1792, 209.5),
    # No memory, so that these are only used by `known_gpu`.
    _device("H100 PCIe", 0, 0, 756),
    _device("H100 NVL", 0, 0, 835),
    _device("H200 NVL", 0, 0, 835),
    _device("GH200", 0, 0, 989),
)
"""Peaks are of bf16 tensor products with fp32 sums, without sparsity; of T4 and V100 (SXM2, 32 GB), which have no bf16,
of fp32. Sources: NVIDIA's data sheets (A100 80 GB, H100 and H200 as SXM). For GeForce: the white papers of Ampere
GA102, Ada and RTX Blackwell, in which the peak is twice the fp32 peak of the CUDA cores; so the RTX 3060, 4060 Ti and
4070 have cores x 2 x boost clock x 2. For the MI300X: AMD's data sheet, with seven links of 64 GB/s in each direction.
The other bandwidths are from the DGX systems: half of the NVLink bandwidth, which is given for both directions, and one
InfiniBand port per GPU, of 200 Gb/s, later 400 Gb/s."""
WITH_MEMORY = tuple(device for device in DEVICES if device.memory_bytes)


def known_gpu(name: str) -> Device | None:
    """Return the GPU with a driver's name.

    None for unknown GPUs, for a part of one (MIG), and for GeForce, whose variants have similar names.
    """
    name_words = set(name.replace("-", " ").split())
    if name_words & {"GeForce", "MIG"}:
        return None
    devices = [device for device in DEVICES if set(device.name.split()) <= name_words]
    return max(devices, key=lambda device: len(device.name), default=None)
