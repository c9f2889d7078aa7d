"""The adapter: texts continued until a stop string as the options of a task ask, and answers kept for the harness.

Likelihoods through it are compared with the harness's own in `test_lm_eval_equals_hf.py`.
"""

from typing import Any
from unittest.mock import Mock, call

import pytest
import torch
from harness_cases import instances
from scored_models import N_POSITIONS, TOKENIZER, tiny_model, tiny_scorer

from widthwise.data.tokenizer import ByteTokenizer
from widthwise.mistakes import UserError
from widthwise.model.generate import SamplingConfig, generate

lm_eval_model = pytest.importorskip("widthwise.evaluation.lm_eval_model", reason="needs the extra [eval]")


def adapter() -> Any:
    return lm_eval_model.ScorerLM(tiny_scorer("x", N_POSITIONS))


def generated(options: dict[str, Any], seed: int = 0, n: int = 6) -> list[str]:
    torch.manual_seed(seed)
    return adapter().generate_until(instances("generate_until", [("The gate", options)] * n), disable_tqdm=True)


def test_temperature_draws_anew_for_every_repetition_and_repeats_with_the_seed() -> None:
    options = {"temperature": 1.0, "max_gen_toks": 12, "until": []}
    found = generated(options)
    assert len(set(found)) == len(found)  # in a batch and between batches
    assert generated(options) == found
    assert generated(options, seed=1) != found


def test_options_have_several_names_and_a_string_is_one_stop() -> None:
    (whole,) = generated({"max_gen_toks": 12, "until": []}, n=1)
    for greedy in (
        {"temperature": 0.7, "do_sample": False},
        {"temperature": 0},
        {"do_sample": True, "top_k": 1},
        {"temperature": 5.0, "top_p": 1e-6},
        {"num_beams": 1},
    ):
        assert generated({**greedy, "max_gen_toks": 12}, n=1) == [whole]
    for name in ("max_new_tokens", "max_tokens", "max_completion_tokens"):
        assert generated({name: 12}, n=1) == [whole]
    assert generated({"max_gen_toks": 12, "until": whole[2:4]}, n=1) == [whole.split(whole[2:4])[0]]


def test_what_a_task_cannot_have_is_refused() -> None:
    for message, options in {
        "generation_kwargs: num_beams: got 4": {"num_beams": 4},
        "generation_kwargs: untill: unknown key; did you mean 'until'?": {"untill": ["a"]},
        "generation_kwargs: temperature: got -1.0": {"temperature": -1.0},
        "max_gen_toks: got 23; must be less than max_length = 23": {"max_gen_toks": N_POSITIONS},
    }.items():
        with pytest.raises(UserError, match=message):
            generated(options)
    with pytest.raises(UserError, match="has no chat template"):
        adapter().apply_chat_template([{"role": "user", "content": "a"}])


def test_answers_are_kept_for_the_cache_of_the_harness() -> None:
    lm, hook = adapter(), Mock()
    lm.set_cache_hook(hook)
    pair, options = ("The gate", " stood"), {"max_gen_toks": 2}
    asked = {"loglikelihood": pair, "loglikelihood_rolling": pair[:1], "generate_until": (pair[0], options)}
    expected = [call(kind, each, getattr(lm, kind)(instances(kind, [each]))[0]) for kind, each in asked.items()]
    assert hook.add_partial.call_args_list == expected


GREEDY = SamplingConfig(temperature=0)
PROMPTS = [TOKENIZER.encode(text) for text in ("The gate", "a", "Seven ships left the harbour")]
N_NEW = 24


def texts(stops: list[str], n_new: int = N_NEW, prompts: list[list[int]] = PROMPTS) -> list[str]:
    return lm_eval_model.continue_until(tiny_model(), TOKENIZER, prompts, stops, n_new, GREEDY)


def test_a_text_ends_before_the_first_stop_and_others_go_on() -> None:
    whole = texts([])
    tokens = generate(tiny_model(), PROMPTS, N_NEW, GREEDY, eos_id=TOKENIZER.eos_id)
    assert whole == [TOKENIZER.decode(row) for row in tokens]
    for length in (1, 2, 3):
        stop = whole[0][5 : 5 + length]
        assert texts([stop, ""]) == [text.split(stop)[0] for text in whole]
        assert len(texts([stop])[0]) <= 5


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
    assert found == [TOKENIZER.decode(whole[: whole.index(whole[6])])]
