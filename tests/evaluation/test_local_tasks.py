"""Local questions: scores from a full softmax, the harness's own answers for the same files, and mistakes in files."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from boxes import refusal
from harness_cases import harness_task, keep_harness_in, write_harness_task, write_lines
from scipy import stats
from scored_models import CHOICES, CLOZES, SCHEMAS, TOKENIZER, softmax_nats, tiny_scorer

from widthwise.evaluation.local_tasks import encode_task, load_task, score_task
from widthwise.mistakes import UserError
from widthwise.records.evaluation import TaskAnswers
from widthwise.runs.evaluate import run_lm_eval
from widthwise.yaml_io import dump_yaml

FORMS = {"cloze": CLOZES, "choices": CHOICES, "schema": SCHEMAS}
LONG = 120
"""More than any of them has."""


def _scores(path: Path, scorer=None, **options) -> TaskAnswers:
    scorer = scorer or tiny_scorer(max_length=LONG)
    return score_task(scorer, encode_task(scorer, load_task(path, **options)))


def _log_likelihood(text: str, continuation: str, model) -> float:
    """The log-likelihood of a continuation, with which the text ends. A token is a byte."""
    nats, _ = softmax_nats(model, [TOKENIZER.eos_id] * (not text[: -len(continuation)]) + list(text.encode()))
    return -float(nats[-len(continuation.encode()) :].sum())


def test_choices_are_ranked_by_their_likelihood_and_by_that_per_character(tmp_path: Path, float64) -> None:
    scorer = tiny_scorer(max_length=LONG)
    found = _scores(write_lines(tmp_path / "choices.jsonl", CHOICES), scorer)
    for index, row in enumerate(CHOICES):
        tail = row["query"][len(row["query"].rstrip()) :]
        asked = [(f"{row['query']} {choice}", f"{tail} {choice}") for choice in row["choices"]]
        likelihoods = np.array([_log_likelihood(*each, scorer.model) for each in asked])
        gold, answer = row["gold"], row["choices"][row["gold"]]
        expected = {
            "acc": float(likelihoods.argmax() == gold),
            "acc_norm": float((likelihoods / [len(choice) for choice in row["choices"]]).argmax() == gold),
            "bits_per_byte": -likelihoods[gold] / math.log(2) / len(answer.encode()),
            "nats_per_character": -likelihoods[gold] / len(answer),
            "nats": -likelihoods[gold],
        }
        assert {name: values[index] for name, values in found.items.items()} == pytest.approx(expected, rel=1e-10)


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing outside the folder of the test is written."""
    pytest.importorskip("lm_eval", reason="needs the extra [eval]")
    keep_harness_in(tmp_path, monkeypatch)


@pytest.mark.parametrize("form", FORMS)
def test_metrics_are_those_of_the_harness_for_the_same_file(form: str, tmp_path: Path, harness: None, float64) -> None:
    path = write_lines(tmp_path / f"{form}.jsonl", FORMS[form])
    scorer = tiny_scorer(max_length=57)
    theirs = run_lm_eval(scorer, [write_harness_task(path)])[0][form]
    ours = _scores(path, scorer).metrics
    shared = ours.keys() & theirs.keys()
    assert shared >= {"cloze": {"acc", "perplexity"}, "choices": {"acc", "acc_norm"}, "schema": {"acc"}}[form]
    for name in shared:
        assert ours[name].value == pytest.approx(theirs[name].value, rel=1e-9)
        if name != "perplexity":  # whose error the harness draws at random
            assert ours[name].stderr == pytest.approx(theirs[name].stderr, rel=1e-9)


def test_a_record_has_chance_cut_contexts_and_standard_errors_over_items(tmp_path: Path) -> None:
    found = _scores(write_lines(tmp_path / "choices.jsonl", CHOICES), tiny_scorer("learned_positions", max_length=23))
    assert found.n_items == len(CHOICES)
    assert found.n_cut_contexts > 0
    assert found.chance == pytest.approx(np.mean([1 / len(row["choices"]) for row in CHOICES]))
    json.dumps(found.to_data(), allow_nan=False)
    for name, score in found.metrics.items():
        expected = np.mean(found.items[name]), stats.sem(found.items[name])
        assert (score.value, score.stderr) == pytest.approx(expected)


def test_a_limit_takes_items_from_the_front_and_is_another_task(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "choices.jsonl", CHOICES)
    first, all_of = load_task(path, limit=2), load_task(path)
    assert first.items == all_of.items[:2]
    assert first.fingerprint not in (all_of.fingerprint, load_task(path, "\n", limit=2).fingerprint)
    assert first.fingerprint == load_task(path, limit=2).fingerprint


def test_a_line_that_is_no_item_is_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "bad.jsonl", CHOICES[:2])
    good = path.read_text()
    for line, message in (
        ("{", "is not valid JSON"),
        ("[1]", "has keys none; must have the keys of one form"),
        ('{"query": "q", "choices": ["a", "b"]}', "has keys query, choices; must have"),
        ('{"query": "q", "choices": ["a", "b"], "gold": 2}', "gold: got 2; must be from 0 to 1"),
        ('{"query": "q", "choices": ["a"], "gold": 0}', "choices"),
        ('{"context": "c", "continuation": ""}', "continuation"),
        ('{"context": "\\ud800", "continuation": "d"}', "holds half a surrogate pair"),
        ('{"context": "c", "continuation": "d"}', "has another form than the lines before"),
    ):
        path.write_text(f"{good}\n{line}\n")
        said = refusal(load_task, path)
        assert said.startswith(f"{path}: line 4: ")
        assert message in said


def test_a_context_is_cut_where_the_answer_would_not_fit_behind_it(tmp_path: Path) -> None:
    row = {"context": "ten bytes.", "continuation": "five"}  # 15 tokens with the space, of which the last is not read
    path = write_lines(tmp_path / "cloze.jsonl", [row, row])
    assert [_scores(path, tiny_scorer(max_length=n)).n_cut_contexts for n in (14, 13)] == [0, 2]


def test_a_file_without_items_or_with_too_long_an_answer_is_refused(tmp_path: Path) -> None:
    assert "has no items" in refusal(load_task, write_lines(tmp_path / "none.jsonl", []))
    task = load_task(write_lines(tmp_path / "choices.jsonl", CHOICES))
    with pytest.raises(UserError, match=r"line 1: an answer has \d+ tokens; allowed: 1 to max_length = 5"):
        encode_task(tiny_scorer(max_length=5), task)


def test_a_task_that_generates_text_and_an_unknown_one_are_refused(tmp_path: Path, harness) -> None:
    task = tmp_path / "writes.yaml"
    questions = write_lines(tmp_path / "writes.jsonl", CLOZES)
    task.write_text(dump_yaml({**harness_task(questions), "output_type": "generate_until"}))
    for name, message in (
        (str(task), "writes generates text; `widthwise export` the model and use `lm_eval --model hf`"),
        ("piqaa", "got 'piqaa'; lm-evaluation-harness has no task of that name; `lm_eval ls tasks` lists them"),
    ):
        assert refusal(run_lm_eval, tiny_scorer(), [name]) == f"tasks: {message}"
