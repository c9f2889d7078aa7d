"""Available memory, and the errors raised when it is not enough."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from widthwise.config_io import UserError

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""As malloc.h numbers them; see mallopt(3)."""
MAX_KEPT_BYTES = 2**31 - 1
"""Free memory at the end of the heap above which it goes back to the system: the most that malloc takes."""
MAX_IN_HEAP_BYTES = 2**25
"""Larger blocks come from the system and go back to it. glibc raises its limit to this, but stops
adapting once the other is set."""
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
        if is_plain and not any(phrase in str(error) for phrase in ALLOCATION_FAILURES):
            raise
        raise UserError(what) from None


def check_room(n_bytes: int, what: str) -> None:
    """Raises UserError `what` where the machine does not have so many bytes, used or not, swap included."""
    if n_bytes > _meminfo("MemTotal") + _meminfo("SwapTotal", default=0):
        raise UserError(what)


def keep_freed_memory() -> None:
    """Memory that tensors free stays with the process from now on, because the next step needs it again.

    Memory from the system comes page by page, each cleared when it is first touched. glibc gives back what is free at
    the end of its heap, which for a small model is after every step: asking for it again took a tenth of a bf16 step.
    Does nothing where the environment sets its own limits.
    """
    if "MALLOC_TRIM_THRESHOLD_" not in os.environ:
        _call_glibc("mallopt", M_MMAP_THRESHOLD, MAX_IN_HEAP_BYTES)
        _call_glibc("mallopt", M_TRIM_THRESHOLD, MAX_KEPT_BYTES)


def give_back_tensors() -> None:
    """Make glibc return tensors of 1 MiB or more to the system when they are freed. Its default raises that limit to
    32 MiB, and the process keeps freed memory between smaller allocations."""
    _call_glibc("mallopt", M_MMAP_THRESHOLD, 2**20)


def give_back_freed_memory() -> None:
    """Gives back to the system, once, all memory that was freed."""
    _call_glibc("malloc_trim", 0)


def _call_glibc(name: str, *numbers: int) -> None:
    """Does nothing with another allocator."""
    if function := getattr(ctypes.CDLL(None), name, None):
        function(*numbers)


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
