"""Likelihoods are those of a full softmax, whatever they are batched with and however a text is cut.

Rows that begin alike read their beginning once.
"""

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scored_models import KINDS, N_POSITIONS, TOKENIZER, softmax_nats, tiny_model, tiny_scorer
from thinned import in_turn

from widthwise.data.json_tokenizer import train_bpe
from widthwise.data.tokenizer import ByteTokenizer
from widthwise.evaluation import batches as batching
from widthwise.evaluation import scorer as scoring
from widthwise.evaluation.batches import Row, batches
from widthwise.evaluation.scorer import LOGITS_AT_ONCE, Scorer, encode_pairs, windows
from widthwise.mistakes import UserError

MAX_LENGTH = N_POSITIONS
REQUESTS = [
    (list(b"the gate stood"), list(b" open")),
    ([], list(b"a")),
    (list(b"x"), list(b"yz!")),
    (list(b"a context longer than the model reads"), list(b" end")),
    (list(b"the gate stood"), list(b" o")),
    ([], list(b"just as long as it reads"[1:])),
    ([7], [TOKENIZER.eos_id]),
    # Two groups that differ in the length of their beginning, and a context that differs late.
    (list(b"in which sea"), list(b" A")),
    (list(b"in which sea"), list(b" a long one")),
    (list(b"in which sea"), list(b" B")),
    (list(b"the gate is shut"), list(b"?")),
    (list(b"the gate is open"), list(b"?")),
    (list(b"the gate was"), list(b" it")),
    (list(b"the gate was"), list(b" shut")),
]


@in_turn(("kind", KINDS), ("batch_size", [1, 2, 3, 8, len(REQUESTS)]), ("logits_at_once", [10**9, 600]))
def test_continuations_get_what_a_full_softmax_gives_whatever_they_are_batched_with(
    kind: str, batch_size: int, logits_at_once: int, monkeypatch: pytest.MonkeyPatch, float64
) -> None:
    monkeypatch.setitem(LOGITS_AT_ONCE, "cpu", logits_at_once)
    scorer = tiny_scorer(kind, MAX_LENGTH, batch_size)
    for order in (1, -1):
        found = scorer.continuations(REQUESTS[::order])[::order]
        for (context, continuation), result in zip(REQUESTS, found, strict=True):
            tokens = ([*context] or [TOKENIZER.eos_id]) + continuation
            nats, is_greedy = softmax_nats(scorer.model, tokens[-(MAX_LENGTH + 1) :])
            assert result.log_likelihood == pytest.approx(-nats[-len(continuation) :].sum(), rel=1e-12)
            assert result.is_greedy == is_greedy[-len(continuation) :].all()


def test_every_row_of_a_model_that_needs_it_begins_with_the_beginning_of_text(float64, monkeypatch) -> None:
    tokenizer = ByteTokenizer()
    tokenizer.bos_id = 5
    scorer = Scorer(tiny_model(), tokenizer, MAX_LENGTH)
    for (context, continuation), result in zip(REQUESTS, scorer.continuations(REQUESTS)):
        tokens = [5, *[*context, *continuation][-MAX_LENGTH:]]
        nats, _ = softmax_nats(scorer.model, tokens)
        assert result.log_likelihood == pytest.approx(-nats[-len(continuation) :].sum(), rel=1e-12)
    document = list(b"a text that is longer than three of the windows of this model, in which all begin alike")
    (found,) = scorer.rolling([document])
    ends = [*range(MAX_LENGTH, len(document), MAX_LENGTH), len(document)]
    nats = [softmax_nats(scorer.model, [5, *document[end - MAX_LENGTH : end]])[0] for end in ends]
    np.testing.assert_allclose(found[: ends[-2]], np.concatenate(nats[:-1]), rtol=1e-12)
    np.testing.assert_allclose(found[ends[-2] :], nats[-1][ends[-2] - ends[-1] :], rtol=1e-12)


def test_bf16_is_near_and_is_not_fp32() -> None:
    model = tiny_model().float()
    exact = Scorer(model, TOKENIZER, MAX_LENGTH).continuations(REQUESTS)
    rounded = Scorer(model, TOKENIZER, MAX_LENGTH, autocast_dtype=torch.bfloat16).continuations(REQUESTS)
    pairs = [(one.log_likelihood, other.log_likelihood) for one, other in zip(exact, rounded)]
    assert all(one == pytest.approx(other, rel=0.05) for one, other in pairs)
    assert any(one != other for one, other in pairs)
    assert model.training  # as before


def test_a_length_that_does_not_fit_is_refused() -> None:
    for n in (0, MAX_LENGTH + 1):
        with pytest.raises(UserError, match=f"has {n} tokens; allowed: 1 to max_length = {MAX_LENGTH}"):
            tiny_scorer(max_length=MAX_LENGTH).continuations([([1], list(range(n)))])
    for stride in (0, 10):
        with pytest.raises(UserError, match=f"stride: got {stride}; must be from 1 to max_length = 9"):
            tiny_scorer(max_length=9).rolling([[1, 2]], stride)
    assert tiny_scorer("learned_positions", N_POSITIONS).max_length == N_POSITIONS
    with pytest.raises(UserError, match=f"no more than {N_POSITIONS} tokens"):
        tiny_scorer("learned_positions", N_POSITIONS + 1)


def test_a_beginning_is_read_once_a_group(monkeypatch: pytest.MonkeyPatch, float64) -> None:
    scorer = tiny_scorer(max_length=MAX_LENGTH, batch_size=8)
    monkeypatch.setattr(scorer.model, "stream", watched := Mock(wraps=scorer.model.stream))
    question = list(b"in which sea")
    scorer.continuations([(question, list(answer)) for answer in (b" A", b" A", b" a long one", b" B")])
    n_read = [tuple(call.args[0].shape) for call in watched.call_args_list]
    assert n_read == [(1, 11), (4, 11)]  # all but the last token of the question, then that and the choices


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
    assert [group.n_shared for group in alone.groups] == [0]


@settings(deadline=None)  # the first call imports the harness
@given(n_tokens=st.integers(0, 40), max_length=st.integers(1, 9), data=st.data())
def test_windows_are_those_of_the_harness(n_tokens: int, max_length: int, data) -> None:
    utils = pytest.importorskip("lm_eval.utils")
    stride, tokens = data.draw(st.integers(1, max_length)), list(range(n_tokens))
    theirs = utils.get_rolling_token_windows(tokens, -1, max_length, max_length - stride + 1)
    assert list(windows(tokens, -1, max_length, stride)) == [utils.make_disjoint_window(window) for window in theirs]


@in_turn(("kind", ["x", "virtual_width", "learned_positions"]), ("stride", [1, 4, None]))
def test_rolling_gives_every_token_the_context_of_its_window_and_holds_few_windows_at_a_time(
    kind: str, stride: int | None, monkeypatch: pytest.MonkeyPatch, float64
) -> None:
    monkeypatch.setattr(scoring, "BATCHES_AT_ONCE", 2)
    scorer, documents = tiny_scorer(kind, max_length=9), [list(b"a text of several windows"), [], list(b"short")]
    monkeypatch.setattr(scorer, "continuations", watched := Mock(wraps=scorer.continuations))
    step = stride or 9
    for document, nats in zip(documents, scorer.rolling(documents, stride), strict=True):
        expected, known = [], [TOKENIZER.eos_id, *document]
        for i in range(len(document)):
            # The first window ends with the ninth token, each later one `step` further, the last with the document.
            end = min(9 if i < 9 else 9 + ((i - 9) // step + 1) * step, len(document))
            start = max(0, end - 9)
            expected.append(softmax_nats(scorer.model, known[start : end + 1])[0][i - start])
        assert nats == pytest.approx(np.array(expected), rel=1e-12)
    held = [len(call.args[0]) for call in watched.call_args_list]
    assert (max(held), len(held)) == {1: (6, 3), 4: (6, 1), None: (4, 1)}[stride]


def test_spaces_between_context_and_continuation_begin_the_continuation() -> None:
    tokenizer = train_bpe(iter(["the open gate of the open sea " * 50]), 270)
    apart, ending, whole = (
        encode_pairs(tokenizer, [pair])[0] for pair in (("the", " open"), ("the ", "open"), ("the  ", "open"))
    )
    assert apart == ending
    assert apart == (tokenizer.encode("the"), tokenizer.encode(" open"))
    assert whole[0] == apart[0]
    assert tokenizer.decode(whole[1]) == "  open"
