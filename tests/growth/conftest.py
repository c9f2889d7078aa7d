import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "model"))  # for its small models of every kind


@pytest.fixture
def float64() -> Iterator[None]:
    """Everything is computed in float64, the rotary tables too."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
