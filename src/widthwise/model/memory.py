"""Memory that is not there."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from widthwise.config_io import UserError

ALLOCATION_FAILURES = ("can't allocate memory", "overflow")
"""How torch words it on a CPU, in a plain RuntimeError: refused by the system, or more than can be addressed."""


@contextmanager
def allocating(what: str) -> Iterator[None]:
    """Turns an allocation of the block that fails into a UserError. what: says what does not fit, and what to change.

    A system that promises more memory than it has kills the process instead; nothing can be said then.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        is_plain = not isinstance(error, (torch.OutOfMemoryError, MemoryError))
        if is_plain and not any(words in str(error) for words in ALLOCATION_FAILURES):
            raise
        raise UserError(what) from None
