"""Numbers per token, byte, character and word, from the formulas."""

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scored_models import TOKENIZER, softmax_nats, tiny_scorer

from widthwise.evaluation import perplexity
from widthwise.evaluation.perplexity import score_documents, score_stream
from widthwise.mistakes import UserError

TEXTS = ["naïve — the café\n\nopens at  nine ", "one", " \n", "ΑΒΓ δεζ " * 9]


def test_metrics_are_those_of_the_harness_for_wikitext(float64) -> None:
    scorer = tiny_scorer(max_length=200)
    nats = sum(softmax_nats(scorer.model, [TOKENIZER.eos_id, *text.encode()])[0].sum() for text in TEXTS)
    n_words = sum(len(re.split(r"\s+", text)) for text in TEXTS)
    n_bytes = sum(len(text.encode("utf-8")) for text in TEXTS)
    metrics = {name: each.value for name, each in score_documents(scorer, TEXTS).metrics.items()}
    assert metrics == pytest.approx(
        {
            "nats_per_token": nats / n_bytes,  # a token is a byte here
            "token_perplexity": math.exp(nats / n_bytes),
            "bits_per_byte": nats / n_bytes / math.log(2),
            "byte_perplexity": math.exp(nats / n_bytes),
            "nats_per_character": nats / sum(map(len, TEXTS)),
            "word_perplexity": math.exp(nats / n_words),
        },
        rel=1e-12,
    )


@settings(max_examples=25, deadline=None)
@given(texts=st.lists(st.text("aβ— \n", max_size=30), min_size=1, max_size=4), block_bytes=st.integers(1, 17))
def test_blocks_leave_nothing_out(texts: list[str], block_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(perplexity, "BLOCK_BYTES", block_bytes)
        kept = [text for text in texts if text]
        if not kept:
            return
        found = score_documents(tiny_scorer(max_length=9), texts)
    assert found.n_documents == len(kept)
    assert found.n_bytes == found.n_tokens == sum(len(text.encode()) for text in kept)
    assert found.n_characters == sum(map(len, kept))
    assert found.n_words == sum(len(re.split(r"\s+", text)) for text in kept)
    assert found.n_blocks == sum(math.ceil(len(text.encode()) / block_bytes) for text in kept)
    assert max(found.blocks["n_bytes"]) <= block_bytes


def test_a_token_belongs_to_the_block_it_begins_in(monkeypatch: pytest.MonkeyPatch, float64) -> None:
    monkeypatch.setattr(perplexity, "BLOCK_BYTES", 8)
    scorer, text = tiny_scorer(max_length=50), "twenty bytes of text"
    nats = softmax_nats(scorer.model, [TOKENIZER.eos_id, *text.encode()])[0]
    found = score_documents(scorer, [text])
    assert found.blocks["nats"] == pytest.approx([nats[:8].sum(), nats[8:16].sum(), nats[16:].sum()])
    assert found.blocks["n_bytes"] == found.blocks["n_tokens"] == [8, 8, 4]


def test_a_stream_counts_the_ends_of_its_documents_as_tokens_without_bytes(float64) -> None:
    scorer = tiny_scorer(max_length=6)
    stream = np.array([*b"first one", TOKENIZER.eos_id, *b"two", TOKENIZER.eos_id, TOKENIZER.eos_id, *b"and a"])
    found = score_stream(scorer, stream)
    (nats,) = scorer.rolling([stream[1:].tolist()], prefix=int(stream[0]))
    ends = np.cumsum([len("irst one") + 1, len("two") + 1, 1])  # an end belongs to the document before it
    assert found.blocks["nats"] == pytest.approx([part.sum() for part in np.split(nats, ends)])
    assert found.n_tokens == len(stream) - 1
    assert found.n_bytes == found.n_characters == len("irst one" + "two" + "and a")
    assert found.n_words == 2 + 1 + 2
    assert found.n_documents == 4


def test_a_limit_cuts_the_document_that_crosses_it_and_counts_the_bytes_that_are_read(float64) -> None:
    scorer = tiny_scorer(max_length=6)
    cut, whole = score_documents(scorer, ["one", "two and more"], max_tokens=6), score_documents(scorer, ["one", "two"])
    assert cut == whole
    assert score_documents(scorer, ["one", "two"], max_tokens=3).n_documents == 1
    inside = score_documents(scorer, ["naïve"], max_tokens=3)
    assert inside.n_bytes == inside.n_tokens == 3


def test_text_without_tokens_is_refused() -> None:
    for texts in ([], [""]):
        with pytest.raises(UserError, match=r"a\.txt: holds no token to predict"):
            score_documents(tiny_scorer(), texts, where="a.txt")
        with pytest.raises(UserError, match="folder: holds no token to predict"):
            score_stream(tiny_scorer(), np.array([5] * len(texts)), where="folder")
