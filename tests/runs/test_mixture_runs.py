"""Runs on a mixture of two prepared corpora."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from boxes import refusal
from tiny_runs import outcome, tiny_recipe, unfinished_copy

from widthwise.data.config import open_data
from widthwise.data.documents import Corpus, Document
from widthwise.data.prepare import prepare
from widthwise.model.decoder import build
from widthwise.recipe.recipe import Recipe
from widthwise.run_dir import RunDir
from widthwise.runs.evaluate import EvaluationConfig, evaluate_run
from widthwise.runs.train import resume, train
from widthwise.training.validation import validate


def corpus(name: str, n_documents: int) -> Corpus:
    return Corpus(name, lambda: (Document(str(index), f"{name} {index} " * 12) for index in range(n_documents)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Prepared folders web and code."""
    path = tmp_path_factory.mktemp("mixture")
    prepare(corpus("web", 120), path / "web", tokenizer="bytes", held_out=0.2)
    prepare(corpus("code", 12), path / "code", tokenizer="bytes", held_out=0.3)
    return path


def mixed_recipe(folder: Path, *overrides: str, weight: float = 0.3) -> Recipe:
    sources = {
        "web": {"path": str(folder / "web"), "weight": 0.7},
        "code": {"path": str(folder / "code"), "weight": weight},
    }
    return tiny_recipe(f"data={json.dumps({'mixture': sources})}", *overrides)


@pytest.fixture(scope="module")
def finished(folder) -> Path:
    train(mixed_recipe(folder), folder / "run")
    return folder / "run"


def test_losses_of_the_sources_are_those_of_their_windows(folder):
    recipe = mixed_recipe(folder, "train.validation_tokens=200")
    data, seq_len = open_data(recipe.data), recipe.seq_len
    model = build(recipe.explicit_model, seed=1)
    found = validate(model, recipe.held_out(data))
    n_windows = {"code": 3, "web": 8}  # 11 windows: round(0.3 * 11) are of code, the rarer
    for name, n in n_windows.items():
        tokens = torch.from_numpy(data.sources[name].held_out.tokens(0, n * seq_len + 1).astype("int64"))
        logits = [model(tokens[None, i * seq_len : (i + 1) * seq_len])[0].double() for i in range(n)]
        expected = torch.nn.functional.cross_entropy(torch.cat(logits), tokens[1:]).item()
        assert found.losses_by_source[name] == pytest.approx(expected, rel=1e-5)
    weighted = sum(n * found.losses_by_source[name] for name, n in n_windows.items()) / 11
    assert found.loss == pytest.approx(weighted)


def test_data_may_move_and_a_changed_source_is_named(finished, folder, tmp_path):
    run = unfinished_copy(finished, tmp_path / "run", 6)
    config = run / "config.yaml"
    config.write_text(config.read_text().replace(str(folder), str(tmp_path)))
    shutil.copytree(folder / "web", tmp_path / "web")
    prepare(corpus("code", 13), tmp_path / "code", tokenizer="bytes", held_out=0.3)
    assert re.search(
        r"trained on other data \(source code: code \w+ of weight 3\) than its recipe", refusal(resume, run)
    )
    shutil.rmtree(tmp_path / "code")
    shutil.copytree(folder / "code", tmp_path / "code")
    resume(run)
    assert outcome(run) == outcome(finished)


def test_a_mixture_resumes_bitwise_and_changed_weights_are_refused_by_source(finished, tmp_path):
    run = unfinished_copy(finished, tmp_path / "4", 4)
    resume(run)
    assert outcome(run) == outcome(finished)
    run = unfinished_copy(finished, tmp_path / "run", 6)
    config, before = run / "config.yaml", "weight: 0.7"
    assert before in config.read_text()
    config.write_text(config.read_text().replace(before, "weight: 0.6"))
    assert "was trained on other data (source code: code " in refusal(resume, run)


def test_evaluation_reads_the_windows_of_the_validation_source_by_source(finished):
    texts = evaluate_run(finished, EvaluationConfig()).texts
    losses = RunDir(finished).result()["val_losses"]
    assert list(texts) == ["held-out/code", "held-out/web"]
    for name, loss in losses.items():
        assert texts[f"held-out/{name}"].metrics["nats_per_token"].value == pytest.approx(loss, rel=1e-5)
