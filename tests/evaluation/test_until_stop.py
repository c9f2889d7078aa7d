"""Texts continued until they say a stop string."""

import pytest
import torch
from scored_models import tiny_model

from widthwise.data.tokenizer import ByteTokenizer
from widthwise.model.generate import SamplingConfig, generate

lm_eval_model = pytest.importorskip("widthwise.evaluation.lm_eval_model", reason="needs the extra [eval]")

GREEDY = SamplingConfig(temperature=0)
BYTES = ByteTokenizer()
PROMPTS = [BYTES.encode(text) for text in ("The gate", "a", "Seven ships left the harbour")]
N_NEW = 24


def texts(stops: list[str], n_new: int = N_NEW, prompts: list[list[int]] = PROMPTS) -> list[str]:
    return lm_eval_model.continue_until(tiny_model(), BYTES, prompts, stops, n_new, GREEDY)


def test_a_text_ends_before_the_first_stop_and_others_go_on() -> None:
    whole = texts([])
    tokens = generate(tiny_model(), PROMPTS, N_NEW, GREEDY, eos_id=BYTES.eos_id)
    assert whole == [BYTES.decode(row) for row in tokens]
    for length in (1, 2, 3):
        stop = whole[0][5 : 5 + length]
        assert texts([stop, ""]) == [text.split(stop)[0] for text in whole]
        assert len(texts([stop])[0]) <= 5


def test_the_batch_ends_when_all_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = generate(tiny_model(), PROMPTS[:1], N_NEW, GREEDY)[0]
    pairs = [tokens[n : n + 2] for n in range(N_NEW - 1)]
    first = next(n for n, pair in enumerate(pairs) if max(pair) < 128 and n)
    model, calls = tiny_model(), []
    hidden = model.hidden
    monkeypatch.setattr(model, "hidden", lambda *arguments: calls.append(1) or hidden(*arguments))
    lm_eval_model.continue_until(model, BYTES, PROMPTS[:1], [BYTES.decode(pairs[first])], N_NEW, GREEDY)
    assert len(calls) == pairs.index(pairs[first]) + 2


def test_a_stop_of_several_bytes_a_letter_ends_a_text_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [torch.tensor([byte]) for byte in "a——b and more".encode()]
    following = iter(given)
    monkeypatch.setattr(lm_eval_model, "stream_tokens", lambda *arguments: following)
    assert texts(["——"], prompts=PROMPTS[:1]) == ["a"]
    assert len(list(following)) == len(given) - len("a——".encode())


def test_the_end_of_text_token_ends_a_text() -> None:
    whole = generate(tiny_model(), PROMPTS[:1], N_NEW, GREEDY)[0]

    class Ending(ByteTokenizer):
        eos_id = whole[6]

    found = lm_eval_model.continue_until(tiny_model(), Ending(), PROMPTS[:1], ["no such text"], N_NEW, GREEDY)
    assert found == [BYTES.decode(whole[: whole.index(whole[6])])]
