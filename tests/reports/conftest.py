"""The comparison that the tests of reports read, and its page."""

from pathlib import Path

import pytest
from fake_comparison import write_comparison
from page_section import reported


@pytest.fixture(scope="session")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison folder that tests read; one that changes it makes its own."""
    return write_comparison(tmp_path_factory.mktemp("comparison"))


@pytest.fixture(scope="session")
def comparison_files(comparison: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What is written for it."""
    return reported(comparison, tmp_path_factory.mktemp("report"))
