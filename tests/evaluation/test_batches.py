"""Rows that begin alike read their beginning once, and are scored as if each were read alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scored_models import N_POSITIONS, TOKENIZER, tiny_model, tiny_scorer

from widthwise.evaluation import batches as batching
from widthwise.evaluation.batches import Row, WholeRows, batches
from widthwise.evaluation.scorer import Scorer

MODEL = tiny_model()
QUESTION = list(b"in which sea")
REQUESTS = [(QUESTION, list(answer)) for answer in (b" A", b" a long one", b" B")]


def test_a_beginning_is_read_once_a_group(monkeypatch: pytest.MonkeyPatch, float64) -> None:
    scorer, n_read = tiny_scorer(max_length=N_POSITIONS, batch_size=8), []
    stream = scorer.model.stream
    monkeypatch.setattr(
        scorer.model, "stream", lambda tokens, *rest: n_read.append(tuple(tokens.shape)) or stream(tokens, *rest)
    )
    scorer.token_scores([REQUESTS[0], *REQUESTS])
    assert n_read == [(1, 11), (4, 11)]  # all but the last token of the question, then that and the choices


def test_answers_are_the_same_in_fp32_within_rounding() -> None:
    model = tiny_model("x").float()
    together, alone = Scorer(model, TOKENIZER, N_POSITIONS, 8), Scorer(model, TOKENIZER, N_POSITIONS, 1)
    for one, other in zip(together.continuations(REQUESTS), alone.continuations(REQUESTS), strict=True):
        assert one.log_likelihood == pytest.approx(other.log_likelihood, rel=2e-6)
        assert one[1:] == other[1:]


@given(st.data())
def test_every_row_is_in_one_batch_of_at_most_so_many(data) -> None:
    rows = data.draw(
        st.lists(st.tuples(st.sampled_from([b"aaaaaaaaaaaa", b"aaaaaaaaab", b"b"]), st.integers(1, 4)), max_size=12)
    )
    rows = [Row([*context, *([7] * n)], n) for context, n in rows]
    batch_size = data.draw(st.integers(1, 5))
    found = [list(batch.rows) for batch in batches(MODEL, rows, batch_size)]
    assert sorted(i for part in found for i in part) == list(range(len(rows)))
    assert all(len(part) <= batch_size for part in found)


def test_a_pass_keeps_no_more_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    n_bytes = model.new_cache(1, 1).n_bytes
    rows = [Row([*f"{i} is a question".encode(), *([1] * 2)], 1) for i in range(3) for _ in range(2)]
    assert len(list(batches(model, rows, 6))) == 1
    monkeypatch.setattr(batching, "CACHE_BYTES", 2 * rows[0].n_read * n_bytes)
    found = [list(batch.rows) for batch in batches(model, rows, 6)]
    assert found == [[0, 1], [2, 3], [4, 5]]
    monkeypatch.setattr(batching, "CACHE_BYTES", n_bytes)
    (alone,) = batches(model, rows, 6)
    assert isinstance(alone, WholeRows)
