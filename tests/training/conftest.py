"""What the tests of training share."""

from pathlib import Path

import pytest
from tiny_runs import tiny_recipe

from widthwise.runs.train import train


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the tiny recipe, which tests only read."""
    path = tmp_path_factory.mktemp("runs") / "run"
    train(tiny_recipe(), path)
    return path
