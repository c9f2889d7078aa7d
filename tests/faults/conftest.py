from pathlib import Path

import pytest
import ranks
from injected import train_run
from tiny_runs import tiny_recipe

from widthwise.yaml_io import to_yaml


@pytest.fixture(scope="session")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """9 steps of two processes that share a model, with a checkpoint of each step."""
    path = tmp_path_factory.mktemp("recipes") / "tiny.yaml"
    path.write_text(to_yaml(tiny_recipe("train.shards=2", "train.micro_batch_size=1")))
    return path


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of that recipe that nobody disturbed."""
    folder = tmp_path_factory.mktemp("finished")
    recipe = tiny_recipe("train.shards=2", "train.micro_batch_size=1")
    ranks.launched(2, train_run, recipe, folder / "run", errors=folder / "errors", codes=[0, 0])
    return folder / "run"
