"""fp64 on both sides of a comparison."""

import pytest


@pytest.fixture(autouse=True)
def _fp64(float64: None) -> None:
    """Our tables of rotation follow the default type."""
