"""Devices: their memory, peak and bandwidths, by the data sheet or as the user says."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from widthwise.config_io import UserError

DEFAULT_MFU = 0.4
DEVICES_PER_NODE = 8
UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kKMGT]i?B)")
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
    def named(cls, name: str, mfu: float | None, among: Sequence["Device"], otherwise: str = "") -> "Device":
        """A known device, in upper or lower case, with or without spaces. otherwise: what to do with any other device,
        for the error. Raises UserError."""
        found = next((each for each in among if _key(each.name) == _key(name)), None)
        if found is None:
            allowed = ", ".join(each.name for each in among)
            raise UserError(f"--device: got {name!r}; allowed: {allowed}{otherwise}")
        return found.used(mfu)

    @classmethod
    def from_options(
        cls,
        device: str | None,
        memory: str | None = None,
        tflops: float | None = None,
        bandwidth: str | None = None,
        mfu: float | None = None,
    ) -> "Device":
        """The device of the options of `plan`, whose numbers precede the data sheet's. Raises UserError.

        device: a name, or a memory; bandwidth: between it and its memory.
        """
        if device is None and memory is None:
            raise UserError("--device: is required; give a name, as rtx4090, or a memory, as 24GB")
        key = _key(device or "")
        similar = [each for each in WITH_MEMORY if key and key in _key(each.name)]
        similar = [each for each in similar if _key(each.name).startswith(key)] or similar  # or hold it, as 4090
        is_number = device is not None and device[:1].isdigit()
        if device is None or (is_number and (memory or SIZE.fullmatch(device) or not similar)):
            found = cls("the device", parse_bytes("--device", device or "")) if memory is None else cls("the device")
        else:
            otherwise = "; for any other: its memory, as 24GB, and --tflops"
            found = cls.named(device, None, similar or WITH_MEMORY, otherwise)
        if memory is not None:
            found = replace(found, memory_bytes=parse_bytes("--memory", memory))
        if tflops is not None:
            if not 0 < tflops < math.inf:
                raise UserError(f"--tflops: got {tflops:g}; must be a number above 0")
            found = replace(found, peak_flops_per_second=1e12 * tflops)
        if bandwidth is not None:
            found = replace(found, memory_bytes_per_second=parse_bytes("--bandwidth", bandwidth.removesuffix("/s")))
        return found.used(mfu)

    @classmethod
    def linked(cls, name: str, mfu: float | None = None, bandwidth: str | None = None) -> "Device":
        """A known device of nodes of DEVICES_PER_NODE, for a dry run. Raises UserError.

        bandwidth: GB/s in a node and between nodes, as 450,50, instead of the data sheet's.
        """
        found = cls.named(name, mfu, WITH_LINKS)
        if bandwidth is None:
            return found
        try:
            node, network = (1e9 * float(part) for part in bandwidth.split(","))
        except ValueError:
            expected = "expected GB/s in a node and between nodes, as 450,50"
            raise UserError(f"--bandwidth: got {bandwidth!r}; {expected}") from None
        if not (0 < node < math.inf and 0 < network < math.inf):
            raise UserError(f"--bandwidth: got {node / 1e9:g},{network / 1e9:g}; must be two numbers above 0")
        return replace(found, node_bytes_per_second=node, network_bytes_per_second=network)

    def used(self, mfu: float | None) -> "Device":
        """The device with another share of its peak in use, DEFAULT_MFU where not given. Raises UserError."""
        if mfu is not None and not 0 < mfu <= 1:
            raise UserError(f"--mfu: got {mfu:g}; must be above 0 and at most 1")
        return replace(self, mfu=DEFAULT_MFU if mfu is None else mfu)

    @property
    def flops_per_second(self) -> float:
        """The part of the peak that training uses."""
        return self.mfu * self.peak_flops_per_second

    @property
    def speed(self) -> str:
        """`H100 at 40% of 989 TFLOP/s`."""
        return f"{self.name} at {self.mfu:.0%} of {self.peak_flops_per_second / 1e12:g} TFLOP/s"

    @property
    def links(self) -> str:
        """The bandwidths to other devices, in words."""
        node, network = self.node_bytes_per_second / 1e9, self.network_bytes_per_second / 1e9
        return f"each sending {node:g} GB/s in a node of {DEVICES_PER_NODE} and {network:g} GB/s between nodes"

    def ring_bytes_per_second(self, n_devices: int, n_in_node: int) -> float:
        """Bytes per second that a device sends in a ring of n_devices, n_in_node of them in each node.

        A ring leaves a node at one place only, so several rings use the network of all its devices at once.
        """
        if n_devices <= n_in_node:
            return self.node_bytes_per_second
        return min(self.node_bytes_per_second, n_in_node * self.network_bytes_per_second)

    def with_same_memory(self) -> list["Device"]:
        """The known devices with about as much memory, of whose peak as much is used."""
        allowed = ABOUT_AS_MUCH * self.memory_bytes
        near = [each for each in WITH_MEMORY if abs(each.memory_bytes - self.memory_bytes) <= allowed]
        return [each.used(self.mfu) for each in near]


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
WITH_LINKS = tuple(each for each in DEVICES if each.node_bytes_per_second)


def peak_flops_per_second(gpu_name: str) -> float | None:
    """Return the bf16 peak without sparsity of the GPU that drivers call so; None for GeForce and unknown GPUs."""
    words = set(gpu_name.replace("-", " ").split()) - {"RTX"}
    found = [each for each in DEVICES if set(each.name.split()) <= words]
    return max(found, key=lambda each: len(each.name)).peak_flops_per_second if found else None
