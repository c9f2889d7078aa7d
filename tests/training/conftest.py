"""What the tests of training share."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def no_fsync() -> Iterator[None]:
    """Hundreds of tiny checkpoints do not wait for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        # What is synced matters after a power cut only.
        patch.setattr(os, "fsync", lambda handle: None)
        yield
