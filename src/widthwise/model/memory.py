"""Available memory, and the errors raised when it is not enough."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from widthwise.config_io import UserError

M_MMAP_THRESHOLD = -3
"""The parameter's number in glibc's malloc.h."""
ALLOCATION_FAILURES = ("can't allocate memory", "overflow")
"""Words of the plain RuntimeError that torch raises on a CPU: the system refused, or the size overflows an address."""


@contextmanager
def allocating(what: str) -> Iterator[None]:
    """Turns a failed allocation inside the block into a UserError. what: what does not fit, and what to change.

    A system that promises more memory than it has kills the process instead; `check_room` sees that coming.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        is_plain = not isinstance(error, (torch.OutOfMemoryError, MemoryError))
        if is_plain and not any(words in str(error) for words in ALLOCATION_FAILURES):
            raise
        raise UserError(what) from None


def check_room(n_bytes: int, what: str) -> None:
    """Raises UserError `what` where the machine does not have so many bytes, used or not, swap included."""
    if n_bytes > _meminfo("MemTotal") + _meminfo("SwapTotal", default=0):
        raise UserError(what)


def give_back_freed() -> None:
    """Has glibc give freed tensors of 1 MiB or more back to the system. By itself it raises that limit to 32 MiB, and
    the process keeps what lies between smaller things that live. Does nothing with another allocator."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, 2**20)


def free_memory() -> int:
    """Bytes that the machine could give a process now."""
    return _meminfo("MemAvailable")


def _meminfo(key: str, default: int | None = None) -> int:
    """Bytes, as Linux counts them. default: where it does not say; None: all the memory there is."""
    try:
        with open("/proc/meminfo") as file:
            sizes = dict(line.split(":", 1) for line in file)
        return int(sizes[key].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if default is None else default
