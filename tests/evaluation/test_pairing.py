"""Differences of two models on the same text and questions."""

import math

import numpy as np
import pytest
from harness_cases import write_lines
from scipy import stats
from scored_models import CHOICES, tiny_scorer

from widthwise.evaluation import perplexity
from widthwise.evaluation.local_tasks import encode_task, load_task, score_task
from widthwise.evaluation.pairing import task_differences, text_differences
from widthwise.evaluation.perplexity import score_documents

TEXTS = ["a text that two models read", "another one", "and — one more, with dashes"]


def test_texts_are_paired_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perplexity, "BLOCK_BYTES", 10)
    one, other = (score_documents(tiny_scorer(seed=seed), TEXTS) for seed in (1, 2))
    found = text_differences(one.record(), other.record())
    assert found is not None
    for name in ("nats_per_token", "bits_per_byte", "nats_per_character"):
        assert found[name].value == pytest.approx(other.metrics()[name].value - one.metrics()[name].value)


def test_the_error_over_equal_blocks_is_that_of_the_mean_of_their_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perplexity, "BLOCK_BYTES", 10)
    one, other = (score_documents(tiny_scorer(seed=seed), ["ten bytes." * 11]) for seed in (1, 2))
    found = text_differences(one.record(), other.record())
    assert found is not None
    assert found["bits_per_byte"].stderr == pytest.approx(stats.sem((other.nats - one.nats) / math.log(2) / 10))


def test_another_context_pairs_but_another_text_does_not() -> None:
    short, long, other = (
        score_documents(tiny_scorer(max_length=n), texts).record()
        for n, texts in ((5, TEXTS), (19, TEXTS), (19, TEXTS[:2]))
    )
    paired = text_differences(short, long)
    assert paired is not None
    assert paired.keys() == {"nats_per_token", "bits_per_byte", "nats_per_character"}
    assert text_differences(short, other) is None


def test_other_tokens_of_the_same_text_are_paired_by_bytes_alone() -> None:
    one = score_documents(tiny_scorer(), TEXTS).record()
    fewer = {**one, "blocks": {**one["blocks"], "n_tokens": [n / 2 for n in one["blocks"]["n_tokens"]]}}
    paired = text_differences(one, fewer)
    assert paired is not None
    assert paired.keys() == {"bits_per_byte", "nats_per_character"}
    assert paired["bits_per_byte"].value == 0.0


def test_questions_are_paired_item_by_item(tmp_path) -> None:
    task = load_task(write_lines(tmp_path / "choices.jsonl", CHOICES))
    scorers = [tiny_scorer(max_length=90, seed=seed) for seed in (1, 2)]
    one, other = (score_task(scorer, encode_task(scorer, task)) for scorer in scorers)
    found = task_differences(one.record(), other.record())
    assert found is not None
    for name, estimate in found.items():
        differences = other.items[name] - one.items[name]
        assert estimate[:2] == pytest.approx((np.mean(differences), stats.sem(differences)))
    fewer = load_task(tmp_path / "choices.jsonl", limit=3)
    part = score_task(scorers[0], encode_task(scorers[0], fewer))
    assert task_differences(one.record(), part.record()) is None
