"""The devices that a prediction assumes: what one holds, computes and moves, by its data sheet or as somebody says."""

import math
import re
from dataclasses import dataclass, replace
from typing import Self

from widthwise.config_io import UserError
from widthwise.training.peak_flops import PEAK_BF16_FLOPS_PER_SECOND

DEFAULT_MFU = 0.4
UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kKMGT]i?B)")
ABOUT_AS_MUCH = 0.1
"""Share by which memories differ that are about the same."""


@dataclass(frozen=True)
class Device:
    """An accelerator. What is None is not known, and nothing is predicted from it."""

    name: str
    memory_bytes: int
    """Gigabytes of the data sheet, 10^9 bytes each. Drivers show up to 7% more, which leaves room for the CUDA context
    and what libraries keep."""
    peak_flops_per_second: float | None = None
    """Dense matrix products in bf16 that are summed in fp32."""
    memory_bytes_per_second: float | None = None

    @classmethod
    def named(cls, name: str) -> Self:
        """A device of DEVICES, in upper or lower case, with or without spaces. Raises UserError."""
        key = _key(name)
        found = [each for each in DEVICES if _key(each.name) == key]
        if not found:
            allowed = ", ".join(_similar(name) or [each.name for each in DEVICES])
            raise UserError(
                f"--device: got {name!r}; allowed: {allowed}; for any other: its memory, as 24GB, and --tflops"
            )
        return cls(**vars(found[0]))

    @classmethod
    def asked(cls, device: str | None, memory: str | None, tflops: float | None, bandwidth: str | None) -> Self:
        """What the options say, numbers over the data sheet's. device: a name, or a memory. Raises UserError."""
        if device is None and memory is None:
            raise UserError("--device: is required; give a name, as rtx4090, or a memory, as 24GB")
        is_number = device is not None and device[:1].isdigit()
        if device is None or (is_number and (memory or SIZE.fullmatch(device) or not _similar(device))):
            size = memory or device
            assert size is not None
            found = cls("the device", parse_bytes("--memory" if memory else "--device", size))
        else:
            found = cls.named(device)
            if memory is not None:
                found = replace(found, memory_bytes=parse_bytes("--memory", memory))
        if tflops is not None:
            if not 0 < tflops < math.inf:
                raise UserError(f"--tflops: got {tflops:g}; must be a number above 0")
            found = replace(found, peak_flops_per_second=1e12 * tflops)
        if bandwidth is not None:
            found = replace(found, memory_bytes_per_second=parse_bytes("--bandwidth", bandwidth.removesuffix("/s")))
        return found

    def rate(self, mfu: float | None) -> float | None:
        """FLOPs per second that training uses. mfu: its share of the peak. Raises UserError."""
        used, peak = checked_mfu(mfu), self.peak_flops_per_second
        return None if peak is None else peak * used


def checked_mfu(mfu: float | None) -> float:
    """The share of a device's peak that training uses, as given on the command line or usual. Raises UserError."""
    if mfu is None:
        return DEFAULT_MFU
    if not 0 < mfu <= 1:
        raise UserError(f"--mfu: got {mfu:g}; must be above 0 and at most 1")
    return mfu


def parse_bytes(option: str, text: str) -> int:
    """ "24GB" -> 24 * 10**9. Raises UserError."""
    match = SIZE.fullmatch(text)
    if match is None or match[2] not in UNITS or not float(match[1]) > 0:
        raise UserError(f"{option}: got {text!r}; expected a size above 0 such as 24GB or 80GiB")
    return round(float(match[1]) * UNITS[match[2]])


def known_with(memory_bytes: int) -> list[Device]:
    """The devices of DEVICES with about so much memory."""
    return [each for each in DEVICES if abs(each.memory_bytes - memory_bytes) <= ABOUT_AS_MUCH * memory_bytes]


def _similar(name: str) -> list[str]:
    """The devices whose names begin with this, or hold it, as 4090."""
    key = _key(name)
    names = [each.name for each in DEVICES if key and key in _key(each.name)]
    return [each for each in names if _key(each).startswith(key)] or names


def _key(name: str) -> str:
    return re.sub(r"[ _-]", "", name.casefold())


def _data_centre(name: str, gigabytes: int, gigabytes_per_second: float) -> Device:
    return Device(name, gigabytes * 10**9, PEAK_BF16_FLOPS_PER_SECOND[name], gigabytes_per_second * 1e9)


def _geforce(name: str, gigabytes: int, teraflops: float, gigabytes_per_second: float) -> Device:
    return Device(name, gigabytes * 10**9, teraflops * 1e12, gigabytes_per_second * 1e9)


DEVICES = (
    _data_centre("A10", 24, 600),
    _data_centre("L4", 24, 300),
    _data_centre("L40S", 48, 864),
    _data_centre("A100", 80, 2039),
    _data_centre("H100", 80, 3350),
    _data_centre("H200", 141, 4800),
    _data_centre("B200", 180, 8000),
    _geforce("RTX 3060", 12, 25.5, 360),
    _geforce("RTX 3090", 24, 71, 936),
    _geforce("RTX 4060 Ti 8GB", 8, 44.1, 288),
    _geforce("RTX 4060 Ti 16GB", 16, 44.1, 288),
    _geforce("RTX 4070", 12, 58.3, 504),
    _geforce("RTX 4080", 16, 97.5, 717),
    _geforce("RTX 4090", 24, 165.2, 1008),
    _geforce("RTX 5080", 16, 112.6, 960),
    _geforce("RTX 5090", 32, 209.5, 1792),
)
"""By NVIDIA's data sheets (A100 80 GB, H100 and H200 as SXM), and for GeForce its white papers of Ampere GA102, Ada and
RTX Blackwell: the bf16 tensor peak with fp32 sums, without sparsity. It is twice the fp32 peak of the CUDA cores, which
gives the RTX 3060, 4060 Ti and 4070 (cores x 2 x boost clock x 2)."""
