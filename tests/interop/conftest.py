"""fp64 on both sides of a comparison."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _fp64() -> Iterator[None]:
    """Our tables of rotation follow the default type."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
