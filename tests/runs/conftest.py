"""What the tests of runs share."""

import sys
from pathlib import Path

import pytest
from tiny_runs import tiny_recipe

from widthwise.runs.train import train

sys.path.insert(0, str(Path(__file__).parents[1] / "evaluation"))  # for its items of tasks
sys.path.insert(0, str(Path(__file__).parents[1] / "model"))  # for its small models of every kind


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the tiny recipe, which tests only read."""
    path = tmp_path_factory.mktemp("runs") / "run"
    train(tiny_recipe(), path)
    return path
