"""Runs that the tests of a file only read."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_runs import tiny_recipe

from widthwise.runs.train import train


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Overrides of the tiny recipe -> the folder of a finished run of it."""
    folder = tmp_path_factory.mktemp("trained")

    def call(*overrides: str, name: str = "run") -> Path:
        train(tiny_recipe(*overrides), folder / name)
        return folder / name

    return call
