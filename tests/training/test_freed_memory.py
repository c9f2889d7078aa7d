"""Freed memory is kept or given back. Tested in another process, because options of glibc apply to a whole process."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import resource
from widthwise.model.memory import give_back_freed_memory, keep_freed_memory

def n_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def touch():  # 81 blocks of 1 MB, free again afterwards
    before = n_faults()
    [bytearray(b"x") * 2**20 for _ in range(81)]
    return n_faults() - before

keep_freed_memory()
touch()
again = touch()
give_back_freed_memory()
print(again, touch())
"""


def test_freed_memory_is_there_again_until_it_is_given_back():
    """Counts page faults when memory is allocated again: few after it was freed, many after it was given back."""
    try:
        os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, OSError, ValueError):
        pytest.skip("this system has another allocator")
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    again, after_giving_back = map(int, found.stdout.split())
    n_pages = 81 * 2**20 // os.sysconf("SC_PAGE_SIZE")
    assert again < n_pages / 10
    assert after_giving_back > n_pages / 2
