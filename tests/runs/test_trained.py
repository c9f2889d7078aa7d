"""A run as a model to use."""

from pathlib import Path

import pytest
import torch
from boxes import refusal
from tiny_runs import unfinished_copy

from widthwise.run_dir import RunDir
from widthwise.runs.open import open_model


def test_model_and_tokenizer_come_from_the_run_alone(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIDTHWISE_CACHE", "/nonexistent")
    trained = open_model(finished)
    assert trained.step == 9
    assert trained.tokenizer.decode(trained.tokenizer.encode("naïve\n")) == "naïve\n"
    assert trained.tokenizer.id == RunDir(finished).environment()["data"]["tokenizer"]["id"]
    logits = trained.model(torch.tensor([trained.tokenizer.encode("width")]))
    assert logits.shape == (1, 5, 257)
    assert logits.isfinite().all()


def test_a_step_of_which_nothing_is_kept_is_refused_and_a_damaged_one_not_replaced(finished: Path, tmp_path) -> None:
    run = unfinished_copy(finished, tmp_path / "run", 3)
    assert refusal(open_model, run, step=6).endswith("checkpoints: step: got 6; there are checkpoints of: 1, 2, 3")
    (run / "checkpoints/step_00000003/model.safetensors").write_bytes(b"torn")
    found = open_model(run)
    assert (found.step, [each.path.name for each in found.damages]) == (2, ["step_00000003"])
    message = "checkpoint step_00000003 is damaged (model.safetensors has 4 bytes"
    assert message in refusal(open_model, run, step=3)
