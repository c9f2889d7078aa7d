"""Texts and tasks that a run is validated on beside the held-out part of its data."""

import json
import re
import shutil
from pathlib import Path

import pytest
import ranks
import torch
from boxes import refusal
from harness_cases import QUESTIONS, write_lines
from tiny_runs import outcome, tiny_recipe, unfinished_copy

from widthwise.data.config import open_data
from widthwise.run_dir import RunDir
from widthwise.runs.evaluate import EvaluationConfig, evaluate_run
from widthwise.runs.open import open_model
from widthwise.runs.train import resume, train

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


def validations(path: Path) -> list[dict]:
    return [record for record in RunDir(path).metrics() if record["event"] == "validation"]


def test_the_same_text_has_the_same_loss_under_any_name_and_changes_nothing_of_the_run(
    folder: Path, finished: Path
) -> None:
    found, expected = outcome(folder / "run"), outcome(finished)
    assert (found["model"], found["optimizer"]) == (expected["model"], expected["optimizer"])
    assert RunDir(finished).result().val_texts is None
    for record in validations(folder / "run"):
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
    assert validations(folder / "run")[-1]["val_tasks"]["quiz"] == ours
    assert [record["step"] for record in validations(folder / "run")] == [5, 9]


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
    for found, expected in zip(validations(tmp_path / "run"), validations(folder / "run"), strict=True):
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
