"""Devices: their memory, peak and bandwidths, by the data sheet or as the user says."""

import math
import re
from dataclasses import dataclass, replace

from widthwise.config_io import UserError

DEFAULT_MFU = 0.4
DEVICES_PER_NODE = 8
UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kKMGT]i?B)")
OPTIONS = {
    "memory": "memory_bytes",
    "tflops": "peak_flops_per_second",
    "memory_bandwidth": "memory_bytes_per_second",
    "node_bandwidth": "node_bytes_per_second",
    "network_bandwidth": "network_bytes_per_second",
}
"""Option of `plan` -> the number of a device that it replaces."""
ABOUT_AS_MUCH = 0.1
"""Share by which memories differ that are about the same."""


@dataclass(frozen=True)
class Device:
    """An accelerator, one of several of a kind. What is 0 is not known, and nothing is predicted from it."""

    name: str
    memory_bytes: int = 0
    """Gigabytes of the data sheet, 10^9 bytes each. Drivers show up to 7% more, which leaves room for the CUDA context,
    the buffers of NCCL and what libraries keep."""
    peak_flops_per_second: float = 0
    """Dense matrix products in bf16 that are summed in fp32."""
    memory_bytes_per_second: float = 0
    node_bytes_per_second: float = 0
    """Sent to the other devices of its node; a link carries as much in the other direction."""
    network_bytes_per_second: float = 0
    """Sent to other nodes."""
    mfu: float = DEFAULT_MFU
    """The share of the peak that training uses."""

    @classmethod
    def from_options(cls, device: str | None, mfu: float | None = None, **changes: str | float | None) -> "Device":
        """Return the device of the options of `plan`, whose numbers precede the data sheet's. Raises UserError.

        device: a name, in upper or lower case, with or without spaces, or a memory. changes: keys of OPTIONS.
        """
        memory = changes.get("memory")
        if device is None and memory is None:
            raise UserError("--device: is required; give a name, as rtx4090, or a memory, as 24GB")
        key = _key(device or "")
        similar = [known for known in WITH_MEMORY if key and key in _key(known.name)]
        similar = [known for known in similar if _key(known.name).startswith(key)] or similar  # or hold it, as 4090
        exact = [known for known in similar if _key(known.name) == key]
        is_number = device is not None and device[:1].isdigit()
        if device is None or (is_number and (memory or SIZE.fullmatch(device) or not similar)):
            result = cls("the device", 0 if memory else parse_bytes("--device", device or ""))
        elif exact:
            result = exact[0]
        else:
            allowed = ", ".join(known.name for known in similar or WITH_MEMORY)
            otherwise = "for any other: its memory, as 24GB, and --tflops"
            raise UserError(f"--device: got {device!r}; allowed: {allowed}; {otherwise}")
        if mfu is not None and not 0 < mfu <= 1:
            raise UserError(f"--mfu: got {mfu:g}; must be above 0 and at most 1")
        tflops = changes.get("tflops")
        if isinstance(tflops, float) and not 0 < tflops < math.inf:
            raise UserError(f"--tflops: got {tflops:g}; must be a number above 0")
        numbers = {
            OPTIONS[name]: 1e12 * value
            if isinstance(value, float)
            else parse_bytes(f"--{name.replace('_', '-')}", value.removesuffix("/s"))
            for name, value in changes.items()
            if isinstance(value, str | float)
        }
        return replace(result, mfu=DEFAULT_MFU if mfu is None else mfu, **numbers)

    @property
    def flops_per_second(self) -> float:
        """The part of the peak that training uses."""
        return self.mfu * self.peak_flops_per_second

    @property
    def assumptions(self) -> str:
        """`H100 at 40% of 989 TFLOP/s`, and what it sends to other devices."""
        text = self.name
        if self.peak_flops_per_second:
            text += f" at {self.mfu:.0%} of {self.peak_flops_per_second / 1e12:g} TFLOP/s"
        if self.node_bytes_per_second:
            node, network = self.node_bytes_per_second / 1e9, self.network_bytes_per_second / 1e9
            text += f", sending {node:g} GB/s in a node of {DEVICES_PER_NODE} and {network:g} GB/s between nodes"
        return text

    def ring_bytes_per_second(self, n_devices: int, n_in_node: int) -> float:
        """Bytes per second that a device sends in a ring of n_devices, n_in_node of them in each node.

        A ring leaves a node at one place only, so several rings use the network of all its devices at once.
        """
        if n_devices <= n_in_node:
            return self.node_bytes_per_second
        return min(self.node_bytes_per_second, n_in_node * self.network_bytes_per_second)


def needs_speed(device: Device) -> UserError:
    """Return the error for days on a device whose FLOPs are not known; it names devices with about its memory."""
    allowed = ABOUT_AS_MUCH * device.memory_bytes
    near = [known for known in WITH_MEMORY if abs(known.memory_bytes - device.memory_bytes) <= allowed]
    names = " or ".join(f"'{known.name}'" for known in near)
    named = f"--device {names} (of about this memory), or " if names else ""
    return UserError(f"--days: needs a speed, which a memory size does not have; give {named}--tflops")


def parse_bytes(option: str, text: str) -> int:
    """ "24GB" -> 24 * 10**9. Raises UserError."""
    match = SIZE.fullmatch(text)
    if match is None or match[2] not in UNITS or not float(match[1]) > 0:
        raise UserError(f"{option}: got {text!r}; expected a size above 0 such as 24GB or 80GiB")
    return round(float(match[1]) * UNITS[match[2]])


def _key(name: str) -> str:
    """Return the name without spaces, case and a leading RTX."""
    return re.sub(r"[ _-]", "", name.casefold()).removeprefix("rtx")


def _known(name: str, memory: float, bandwidth: float, tflops: float, node: float = 0, network: float = 0) -> Device:
    """Memory in GB, bandwidths in GB/s."""
    return Device(name, round(memory * 1e9), tflops * 1e12, bandwidth * 1e9, node * 1e9, network * 1e9)


DEVICES = (
    _known("T4", 16, 320, 8.1),
    _known("V100", 32, 900, 15.7),
    _known("A10", 24, 600, 125),
    _known("L4", 24, 300, 121),
    _known("L40S", 48, 864, 362),
    _known("A6000", 48, 768, 154.8),
    _known("RTX 6000 Ada", 48, 960, 364.2),
    _known("A100", 80, 2039, 312, node=300, network=25),
    _known("H100", 80, 3350, 989, node=450, network=50),
    _known("H200", 141, 4800, 989, node=450, network=50),
    _known("B200", 180, 8000, 2250, node=900, network=50),
    _known("MI300X", 192, 5300, 1307.4, node=448, network=50),
    _known("RTX 3060", 12, 360, 25.5),
    _known("RTX 3090", 24, 936, 71),
    _known("RTX 4060 Ti 8GB", 8, 288, 44.1),
    _known("RTX 4060 Ti 16GB", 16, 288, 44.1),
    _known("RTX 4070", 12, 504, 58.3),
    _known("RTX 4080", 16, 717, 97.5),
    _known("RTX 4090", 24, 1008, 165.2),
    _known("RTX 5080", 16, 960, 112.6),
    _known("RTX 5090", 32, 1792, 209.5),
    _known("H100 PCIe", 0, 0, 756),
    _known("H100 NVL", 0, 0, 835),
    _known("GH200", 0, 0, 989),
)
"""By NVIDIA's data sheets (A100 80 GB, H100 and H200 as SXM), and for GeForce its white papers of Ampere GA102, Ada and
RTX Blackwell: the bf16 tensor peak with fp32 sums, without sparsity. It is twice the fp32 peak of the CUDA cores, which
gives the RTX 3060, 4060 Ti and 4070 (cores x 2 x boost clock x 2). T4 and V100 (SXM2, 32 GB) multiply no bf16, so
theirs is the fp32 peak, in which they train. The MI300X is by AMD's data sheet, with seven links of 64 GB/s in each
direction. The other links are those of the DGX systems: half of the NVLink bandwidth, which is given for both
directions, and one InfiniBand port a GPU, of 200 Gb/s, later 400 Gb/s."""
WITH_MEMORY = tuple(each for each in DEVICES if each.memory_bytes)


def known_gpu(name: str) -> Device | None:
    """Return the GPU that drivers call so; None for unknown GPUs and for GeForce, whose variants share words."""
    words = set(name.replace("-", " ").split()) - {"RTX"}
    devices = [device for device in DEVICES if set(device.name.split()) <= words]
    return max(devices, key=lambda device: len(device.name), default=None)
