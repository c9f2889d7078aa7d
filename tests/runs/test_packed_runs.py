"""Runs that read each document of a row alone."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tiny_runs import outcome, step_config, tiny_recipe, unfinished_copy

from widthwise.data.config import open_data
from widthwise.data.documents import Corpus, Document
from widthwise.data.loader import NO_BOUNDARIES, Boundaries
from widthwise.data.prepare import prepare
from widthwise.model.decoder import build
from widthwise.recipe.recipe import Recipe
from widthwise.run_dir import RunDir
from widthwise.runs.open import open_model
from widthwise.runs.train import resume, train
from widthwise.training.objective import Objective
from widthwise.training.processes import ALONE

EOS = 256
PACKED = ("data.mask_documents=true", "data.reset_positions=true", "model.positions={n_positions: 17}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Prepared documents of 4 to 9 tokens, so that every row holds several."""
    texts = [f"{7**index}"[:8].rjust(3 + index % 3) for index in range(400)]
    corpus = Corpus("short", lambda: (Document(str(index), text) for index, text in enumerate(texts)))
    path = tmp_path_factory.mktemp("packed") / "short"
    prepare(corpus, path, tokenizer="bytes", held_out=0.2)
    return path


def packed_recipe(folder: Path, *overrides: str) -> Recipe:
    return tiny_recipe(f"data.path={folder}", *PACKED, *overrides)


@pytest.fixture(scope="module")
def finished(trained, folder) -> Path:
    return trained(f"data.path={folder}", *PACKED)


def test_the_loss_of_validation_is_that_of_each_document_alone(finished, folder):
    trained, recipe = open_model(finished), packed_recipe(folder)
    losses = []
    for window in recipe.held_out(open_data(recipe.data)).batches():
        for row in window:
            begins = [0, *((row[:-2] == EOS).nonzero()[:, 0] + 1).tolist(), 17]
            assert len(begins) > 2
            parts = [row[first : last + 1] for first, last in pairwise(begins)]
            logits = [trained.model(part[None, :-1])[0].double() for part in parts]
            losses.append(torch.nn.functional.cross_entropy(torch.cat(logits), row[1:]).item())
    assert RunDir(finished).result()["val_window_losses"] == pytest.approx(losses, rel=1e-5)


def test_a_run_resumes_bitwise_and_each_key_makes_another_run(finished, folder, tmp_path):
    run = unfinished_copy(finished, tmp_path / "run", 5)
    resume(run)
    assert outcome(run) == outcome(finished)
    for key in ("mask_documents", "reset_positions"):
        other = train(packed_recipe(folder, f"data.{key}=false"), tmp_path / key)
        assert abs(other["val_loss"] - RunDir(finished).result()["val_loss"]) > 1e-5


def test_accumulation_equals_one_batch(float64):
    batch = torch.randint(0, 9, (4, 14), generator=torch.Generator().manual_seed(5))
    recipe, told = tiny_recipe(*PACKED, "model.mtp={n_depths: 2}"), Boundaries(7, masks=True, resets=True)
    models = [build(recipe.explicit_model, seed=1, dtype=torch.float64) for _ in range(3)]
    found = []
    for model, size, boundaries in zip(models, (4, 2, 4), (told, told, NO_BOUNDARIES)):
        config = step_config(size)
        objective = Objective(config, model.config, batch.device)
        loss, _, _ = objective.backward(model, batch, boundaries, ALONE)
        found.append(loss / batch[:, 1:].numel())
    assert found[1].item() == pytest.approx(found[0].item(), rel=1e-12)
    assert abs(found[2] - found[0]) > 1e-6
    for ours, truth in zip(models[1].parameters(), models[0].parameters(), strict=True):
        torch.testing.assert_close(ours.grad, truth.grad, rtol=1e-9, atol=1e-13)
