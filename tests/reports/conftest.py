"""The comparison that the tests of reports read."""

from pathlib import Path

import pytest
from fake_comparison import write_comparison


@pytest.fixture(scope="session")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison folder that tests read; one that changes it makes its own."""
    return write_comparison(tmp_path_factory.mktemp("comparison"))
