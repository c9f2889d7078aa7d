"""Memory that tensors have freed stays with the process, because the next step needs it again.

Memory from the system comes page by page, each cleared when it is first touched. glibc gives back what is free at the
end of its heap, which for a small model is after every step: asking for it again took a tenth of a bf16 step.
"""

import ctypes
import os

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""As malloc.h numbers them; see mallopt(3)."""
MAX_KEPT_BYTES = 2**31 - 1
"""How much may be free at the end of the heap before it goes back to the system: the most that can be said."""
MAX_IN_HEAP_BYTES = 2**25
"""Larger blocks come from the system and go back to it. glibc's own limit would reach this by itself, but stops
adapting once the other is set."""


def keep_freed_memory() -> None:
    """From now on, in the whole process. Does nothing without glibc, or where the environment has told it otherwise."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt") and "MALLOC_TRIM_THRESHOLD_" not in os.environ:
        libc.mallopt(M_MMAP_THRESHOLD, MAX_IN_HEAP_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, MAX_KEPT_BYTES)


def give_back_freed_memory() -> None:
    """Once, all of it. Does nothing without glibc."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
