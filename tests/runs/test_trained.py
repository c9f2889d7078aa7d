"""A run as a model to use."""

import shutil

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import tiny_recipe

from widthwise.config_io import UserError
from widthwise.run_dir import RunDir
from widthwise.runs.train import train
from widthwise.runs.trained import load_trained


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    path = tmp_path_factory.mktemp("trained") / "run"
    train(tiny_recipe("train.checkpoint_every=5"), path)
    return RunDir(path)


def test_model_and_tokenizer_come_from_the_run_alone(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIDTHWISE_CACHE", "/nonexistent")
    trained = load_trained(run.path)
    assert trained.step == 9
    assert trained.tokenizer.decode(trained.tokenizer.encode("naïve\n")) == "naïve\n"
    assert trained.tokenizer.id == run.environment()["data"]["tokenizer"]["id"]
    logits = trained.model(torch.tensor([trained.tokenizer.encode("width")]))
    assert logits.shape == (1, 5, 257)
    assert logits.isfinite().all()


def test_a_step_names_the_checkpoint(run: RunDir) -> None:
    before, now = load_trained(run.path, step=5), load_trained(run.path)
    assert (before.step, now.step) == (5, 9)
    saved = load_file(run.checkpoints / "step_00000005/model.safetensors")
    assert all(torch.equal(before.model.get_parameter(name), tensor) for name, tensor in saved.items())
    assert not torch.equal(before.model.embedding.weight, now.model.embedding.weight)


def test_a_step_of_which_nothing_is_kept_is_refused_and_a_damaged_one_not_replaced(run: RunDir, tmp_path) -> None:
    with pytest.raises(UserError, match=r"checkpoints: step: got 6; there are checkpoints of: 5, 9$"):
        load_trained(run.path, step=6)
    damaged = shutil.copytree(run.path, tmp_path / "damaged")
    (damaged / "checkpoints/step_00000009/model.safetensors").write_bytes(b"torn")
    found = load_trained(damaged)
    assert (found.step, [each.path.name for each in found.damages]) == (5, ["step_00000009"])
    with pytest.raises(UserError, match=r"checkpoint step_00000009 is damaged \(model.safetensors has 4 bytes"):
        load_trained(damaged, step=9)
