"""Available memory, and the errors raised when it is not enough."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from widthwise.mistakes import UserError

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
"""Parameters of mallopt(3), as numbered in malloc.h."""
MAX_KEPT_BYTES = 2**31 - 1
"""Free memory at the end of the heap above which glibc returns it to the system: the maximum of mallopt."""
MAX_IN_HEAP_BYTES = 2**25
"""Larger blocks are allocated from the system and returned to it. By default glibc raises its limit up to this value,
but stops adapting once the other limit is set."""
ALLOCATION_FAILURES = ("can't allocate memory", "overflow")
"""Phrases in the RuntimeError that torch raises on a CPU if the system refuses or the size overflows an address."""


@contextmanager
def allocating(message: str) -> Iterator[None]:
    """Turn a failed allocation inside the block into a UserError with this message.

    A system that overcommits memory kills the process instead; `check_room` prevents that.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        is_out_of_memory = isinstance(error, (torch.OutOfMemoryError, MemoryError))
        if not is_out_of_memory and not any(phrase in str(error) for phrase in ALLOCATION_FAILURES):
            raise
        raise UserError(message) from None


def check_room(n_bytes: int, message: str) -> None:
    """Raise UserError with this message if the machine has fewer bytes in total, including swap."""
    if n_bytes > _meminfo("MemTotal") + _meminfo("SwapTotal", default=0):
        raise UserError(message)


def keep_freed_memory() -> None:
    """Keep the memory of freed tensors in the process, because the next step needs it again.

    By default glibc returns free memory at the end of its heap to the system, in a small model after every step. The
    system clears each page when it is used again, which took a tenth of a bf16 step. Do nothing if the environment
    variable MALLOC_TRIM_THRESHOLD_ is set.
    """
    if "MALLOC_TRIM_THRESHOLD_" not in os.environ:
        _call_glibc("mallopt", M_MMAP_THRESHOLD, MAX_IN_HEAP_BYTES)
        _call_glibc("mallopt", M_TRIM_THRESHOLD, MAX_KEPT_BYTES)


def give_back_tensors() -> None:
    """Make glibc return tensors of 1 MiB or more to the system when they are freed. Its default raises that limit to
    32 MiB, and the process keeps freed memory between smaller allocations."""
    _call_glibc("mallopt", M_MMAP_THRESHOLD, 2**20)


def give_back_freed_memory() -> None:
    """Return all freed memory to the system once."""
    _call_glibc("malloc_trim", 0)


def _call_glibc(name: str, *numbers: int) -> None:
    """Call a function of glibc; do nothing with another allocator."""
    if function := getattr(ctypes.CDLL(None), name, None):
        function(*numbers)


def free_memory() -> int:
    """Return the bytes that are available to a process now."""
    return _meminfo("MemAvailable")


def _meminfo(key: str, default: int | None = None) -> int:
    """Return a field of /proc/meminfo in bytes. default: result if it is missing; None: the physical memory."""
    try:
        with open("/proc/meminfo") as file:
            sizes = dict(line.split(":", 1) for line in file)
        return int(sizes[key].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if default is None else default
