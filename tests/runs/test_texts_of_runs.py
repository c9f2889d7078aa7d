"""Runs on a mixture of corpora, on documents read each alone, and validated on further texts and tasks."""

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import ranks
import torch
from boxes import refusal
from harness_cases import QUESTIONS, write_lines
from tiny_runs import outcome, records, resumed_alike, step_config, tiny_recipe, unfinished_copy

from widthwise.data.config import open_data
from widthwise.data.corpus import Corpus, Document
from widthwise.data.loader import NO_BOUNDARIES, Boundaries
from widthwise.data.prepare import prepare
from widthwise.model.decoder import build
from widthwise.recipe.recipe import Recipe
from widthwise.run_dir import RunDir
from widthwise.runs.evaluate import EvaluationConfig, evaluate_run
from widthwise.runs.open import open_model
from widthwise.runs.train import resume, train
from widthwise.training.objective import Objective
from widthwise.training.processes import ALONE
from widthwise.training.validation import validate


def corpus(name: str, n_documents: int) -> Corpus:
    return Corpus(name, lambda: (Document(str(index), f"{name} {index} " * 12) for index in range(n_documents)))


@pytest.fixture(scope="module")
def corpora(tmp_path_factory) -> Path:
    """Prepared folders web and code."""
    path = tmp_path_factory.mktemp("mixture")
    prepare(corpus("web", 120), path / "web", tokenizer="bytes", held_out=0.2)
    prepare(corpus("code", 12), path / "code", tokenizer="bytes", held_out=0.3)
    return path


def mixed_recipe(corpora: Path, *overrides: str) -> Recipe:
    web, code = (f"{name}: {{path: {corpora / name}, weight: {n}}}" for name, n in (("web", 0.7), ("code", 0.3)))
    return tiny_recipe(f"data={{mixture: {{{web}, {code}}}}}", *overrides)


@pytest.fixture(scope="module")
def mixed_run(corpora) -> Path:
    train(mixed_recipe(corpora), corpora / "run")
    return corpora / "run"


def test_losses_of_the_sources_are_those_of_their_windows(corpora):
    recipe = mixed_recipe(corpora, "train.validation_tokens=200")
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


def test_data_may_move_and_a_changed_source_is_named(mixed_run, corpora, tmp_path):
    run = unfinished_copy(mixed_run, tmp_path / "run", 6)
    config = run / "config.yaml"
    config.write_text(config.read_text().replace(str(corpora), str(tmp_path)))
    shutil.copytree(corpora / "web", tmp_path / "web")
    prepare(corpus("code", 13), tmp_path / "code", tokenizer="bytes", held_out=0.3)
    other = r"trained on other data \(source code: code \w+ of weight {}\) than its recipe"
    assert re.search(other.format(3), refusal(resume, run))
    shutil.rmtree(tmp_path / "code")
    shutil.copytree(corpora / "code", tmp_path / "code")
    whole = config.read_text()
    config.write_text(whole.replace("weight: 0.7", "weight: 0.6"))
    assert re.search(other.format(3), refusal(resume, run))
    config.write_text(whole)
    resume(run)
    assert outcome(run) == outcome(mixed_run)


def test_evaluation_reads_the_windows_of_the_validation_source_by_source(mixed_run):
    texts = evaluate_run(mixed_run, EvaluationConfig()).texts
    found = {name: text.metrics["nats_per_token"].value for name, text in texts.items()}
    losses = RunDir(mixed_run).result().val_losses
    assert found == pytest.approx({f"held-out/{name}": loss for name, loss in losses.items()}, rel=1e-5)


PACKED = ("data.mask_documents=true", "data.reset_positions=true", "model.positions={n_positions: 17}")


@pytest.fixture(scope="module")
def short_texts(tmp_path_factory) -> Path:
    """Prepared documents of 4 to 9 tokens, so that every row holds several."""
    texts = [f"{7**index}"[:8].rjust(3 + index % 3) for index in range(400)]
    corpus = Corpus("short", lambda: (Document(str(index), text) for index, text in enumerate(texts)))
    path = tmp_path_factory.mktemp("packed") / "short"
    prepare(corpus, path, tokenizer="bytes", held_out=0.2)
    return path


@pytest.fixture(scope="module")
def packed_run(trained, short_texts) -> Path:
    return trained(f"data.path={short_texts}", *PACKED)


def test_the_loss_of_validation_is_that_of_each_document_alone(packed_run):
    trained = open_model(packed_run)
    recipe, losses = trained.recipe, []
    for window in recipe.held_out(open_data(recipe.data)).batches():
        for row in window:
            begins = [0, *((row[:-2] == EOS).nonzero()[:, 0] + 1).tolist(), 17]
            assert len(begins) > 2
            parts = [row[first : last + 1] for first, last in pairwise(begins)]
            logits = [trained.model(part[None, :-1])[0].double() for part in parts]
            losses.append(torch.nn.functional.cross_entropy(torch.cat(logits), row[1:]).item())
    assert RunDir(packed_run).result()["val_window_losses"] == pytest.approx(losses, rel=1e-5)


def test_a_run_resumes_bitwise_and_each_key_makes_another_run(packed_run, short_texts, tmp_path):
    resumed_alike(packed_run, tmp_path, 5)
    for key in ("mask_documents", "reset_positions"):
        other = train(tiny_recipe(f"data.path={short_texts}", *PACKED, f"data.{key}=false"), tmp_path / key)
        assert abs(other["val_loss"] - RunDir(packed_run).result()["val_loss"]) > 1e-5


def test_accumulation_equals_one_batch(float64):
    batch = torch.randint(0, 9, (4, 14), generator=torch.Generator().manual_seed(5))
    recipe, told = tiny_recipe(*PACKED, "model.mtp={n_depths: 2}"), Boundaries(7, masks=True, resets=True)
    models = [build(recipe.explicit_model, seed=1, dtype=torch.float64) for _ in range(3)]
    found = []
    for model, size, boundaries in zip(models, (4, 2, 4), (told, told, NO_BOUNDARIES)):
        objective = Objective(step_config(size), model.config, batch.device)
        loss, _, _ = objective.backward(model, batch, boundaries, ALONE)
        found.append(loss / batch[:, 1:].numel())
    assert found[1].item() == pytest.approx(found[0].item(), rel=1e-12)
    assert abs(found[2] - found[0]) > 1e-6
    for ours, truth in zip(models[1].parameters(), models[0].parameters(), strict=True):
        torch.testing.assert_close(ours.grad, truth.grad, rtol=1e-9, atol=1e-13)


EOS = 256
TEXTS = ["a text of its own\n", "and — another one, longer than a window is\n"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """texts.jsonl and questions.jsonl, and a run that is validated on both and on its own held-out text again."""
    folder = tmp_path_factory.mktemp("validated")
    write_lines(folder / "texts.jsonl", [{"body": text} for text in TEXTS])
    write_lines(folder / "questions.jsonl", QUESTIONS)
    train(tiny_recipe(*validated_on(folder)), folder / "run")
    return folder


def validated_on(folder: Path) -> tuple[str, ...]:
    texts = {
        "own": {"source": str(folder / "texts.jsonl"), "field": "body"},
        "front": {"source": str(folder / "texts.jsonl"), "field": "body", "max_tokens": 20},
        "again": {"source": str(open_data(tiny_recipe().data).path), "max_tokens": 90},
    }
    tasks = {"quiz": {"file": str(folder / "questions.jsonl"), "limit": 2}}
    return (f"validation={json.dumps({'texts': texts, 'tasks': tasks})}",)


def test_the_same_text_has_the_same_loss_under_any_name_and_changes_nothing_of_the_run(
    folder: Path, finished: Path
) -> None:
    found, expected = outcome(folder / "run"), outcome(finished)
    assert (found["model"], found["optimizer"]) == (expected["model"], expected["optimizer"])
    assert RunDir(finished).result().val_texts is None
    for record in records(folder / "run", "validation"):
        assert record["val_texts"]["again"] == {key: record[key] for key in ("loss", "perplexity", "bits_per_byte")}
    result = RunDir(folder / "run").result()
    assert result.val_texts["again"].loss == result.val_loss
    assert result.val_texts["again"].window_losses == result.val_window_losses


def test_raw_text_is_read_in_windows_with_the_end_of_text_behind_each_document(folder: Path) -> None:
    ids = [token for text in TEXTS for token in (*text.encode(), EOS)]
    rows = torch.tensor([ids[start : start + 18] for start in range(0, len(ids) - 17, 17)])
    with torch.no_grad():
        found = open_model(folder / "run").model(rows[:, :-1]).log_softmax(dim=-1)
    losses = -found.gather(2, rows[:, 1:, None])[..., 0].mean(dim=1)
    texts = RunDir(folder / "run").result().val_texts
    assert len(rows) == 3
    assert list(texts["own"].window_losses) == pytest.approx(losses.tolist(), rel=1e-5)
    assert texts["own"].loss == pytest.approx(losses.mean().item(), rel=1e-5)
    assert list(texts["front"].window_losses) == pytest.approx(losses[:1].tolist(), rel=1e-5)


def test_tasks_have_the_scores_that_an_evaluation_finds(folder: Path) -> None:
    asked = EvaluationConfig(task_files=(str(folder / "questions.jsonl"),), limit=2)
    expected = evaluate_run(folder / "run", asked).tasks["questions"]
    found = RunDir(folder / "run").result().val_tasks["quiz"]
    assert (found.n_items, found.chance) == (2, 0.5)
    ours, theirs = ({name: score.value for name, score in each.metrics.items()} for each in (found, expected))
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert records(folder / "run", "validation")[-1]["val_tasks"]["quiz"] == ours
    assert [record["step"] for record in records(folder / "run", "validation")] == [5, 9]


def test_a_text_or_task_may_move_but_not_change(folder: Path, tmp_path: Path) -> None:
    run = unfinished_copy(folder / "run", tmp_path / "run", 5)
    config = run / "config.yaml"
    for name in ("texts.jsonl", "questions.jsonl"):
        shutil.copy(folder / name, tmp_path / name)
        config.write_text(config.read_text().replace(str(folder / name), str(tmp_path / name)))
    write_lines(tmp_path / "questions.jsonl", QUESTIONS[1:])
    assert "validation.tasks.quiz: differs from the one the run started with" in refusal(resume, run)
    write_lines(tmp_path / "questions.jsonl", QUESTIONS)
    write_lines(tmp_path / "texts.jsonl", [{"body": text.upper()} for text in TEXTS])
    assert "validation.texts.own: differs from the one" in refusal(resume, run)
    shutil.copy(folder / "texts.jsonl", tmp_path / "texts.jsonl")
    resume(run)
    assert outcome(run) == outcome(folder / "run")
    config.write_text(config.read_text().replace("limit: 2", "limit: 3"))
    assert re.search(r"config.yaml: was changed .* validation.tasks.quiz.limit from 2 to 3", refusal(resume, run))


def test_two_processes_find_what_one_does(folder: Path, tmp_path: Path) -> None:
    recipe = tiny_recipe(*validated_on(folder), "train.shards=2")
    ranks.launched(2, train, recipe, tmp_path / "run", errors=tmp_path / "errors", codes=[0, 0])
    for found, expected in zip(
        records(tmp_path / "run", "validation"), records(folder / "run", "validation"), strict=True
    ):
        for key in ("val_texts", "val_tasks"):
            for name, values in expected[key].items():
                assert found[key][name] == pytest.approx(values, rel=1e-4)  # sums in another order


def _train(override: str, path: Path) -> None:
    train(tiny_recipe(override), path)


def test_a_mistake_is_found_before_the_first_step(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short.txt").write_text("short")
    write_lines(Path("long.jsonl"), [{"context": "a", "continuation": 30 * "b"}])
    shutil.copytree(open_data(tiny_recipe("data.tokenizer=bpe-280", "model.vocab_size=280").data).path, "other")
    for section, message in (
        ("texts.t={source: nowhere.txt}", "validation.texts.t: nowhere.txt: no such file"),
        ("texts.t={source: short.txt}", "validation.texts.t: short.txt holds 6 tokens; must be at least 18"),
        ("texts.t={source: short.txt, max_tokens: 5}", "texts.t.max_tokens: got 5; must be at least seq_len = 17"),
        ("texts.t={source: other}", "texts.t: other: was tokenised by bpe-280, not by "),
        ("tasks.t={file: nowhere.jsonl}", "validation.tasks.t: nowhere.jsonl: cannot be read"),
        ("tasks.t={file: long.jsonl}", "tasks.t: long.jsonl: line 1: an answer has 31 tokens"),
        ("texts={a b: {source: short.txt}}", "validation.texts.a b"),
    ):
        assert message in refusal(_train, f"validation.{section}", tmp_path / "run")
    assert not RunDir(tmp_path / "run").exists
