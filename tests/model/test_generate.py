"""Generation: greedy decoding against a loop without a cache, sampling against brute force."""

from itertools import takewhile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cases import config, decoder

from widthwise.model.generate import SamplingConfig, draw, filter_logits, generate

GREEDY = SamplingConfig(temperature=0)
PROMPTS = [[3, 1, 4, 1, 5, 9], [2], [6, 5, 3]]


def argmax_loop(model, prompt, n):
    """Greedy decoding without a cache."""
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(n):
            tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("shape", "endpoints"), [("x", "slim"), ("zigzag", "full")])
def test_greedy_equals_the_argmax_loop_without_cache_for_prompts_of_different_lengths(shape, endpoints):
    """So do a top-k of one, a tiny top-p and a cold temperature; each continuation ends before its first EOS."""
    model = decoder(config(shape, endpoints))
    greedy = [argmax_loop(model, prompt, 9) for prompt in PROMPTS]
    assert generate(model, PROMPTS, 9, GREEDY) == greedy
    for sampling in (SamplingConfig(top_k=1), SamplingConfig(top_p=1e-9), SamplingConfig(temperature=1e-44)):
        assert generate(model, PROMPTS, 9, sampling, seed=3) == greedy
    for eos in {token for row in greedy for token in row}:
        expected = [row[: row.index(eos)] if eos in row else row for row in greedy]
        assert generate(model, PROMPTS, 9, GREEDY, eos_id=eos) == expected
    ends = {greedy[0][3], greedy[1][2]}
    expected = [[*takewhile(lambda token: token not in ends, row)] for row in greedy]
    assert generate(model, PROMPTS, 9, GREEDY, eos_id=ends) == expected


def test_a_seed_names_a_sample():
    model = decoder(config("x"), dtype=torch.float32)
    first, again, other = (generate(model, PROMPTS, 12, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    torch.manual_seed(99)  # the global generator has no part in it
    assert generate(model, PROMPTS, 12, seed=1) == first


def brute_force(logits: list[float], sampling: SamplingConfig) -> set[int]:
    """The tokens that may be drawn."""
    order = sorted(range(len(logits)), key=lambda i: -logits[i])
    if sampling.top_k is not None:
        order = order[: sampling.top_k]
    scaled = torch.tensor([logits[i] / sampling.temperature for i in order], dtype=torch.float64)
    kept, total = set(), 0.0
    for i, p in zip(order, scaled.softmax(0).tolist(), strict=True):
        if sampling.top_p < 1 and total >= sampling.top_p - 1e-12 and kept:
            break
        kept.add(i)
        total += p
    return kept


@settings(deadline=None, max_examples=150)
@given(
    logits=st.lists(st.integers(-40, 40), min_size=1, max_size=12, unique=True),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.sampled_from([None, 1, 2, 5, 100]),
    top_p=st.sampled_from([1.0, 0.9003, 0.5007, 0.10001]),
)
def test_filters_equal_brute_force(logits, temperature, top_k, top_p):
    sampling = SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p)
    values = [value / 7 for value in logits]
    filtered = filter_logits(torch.tensor([values, values[::-1]]), sampling)
    kept = set(torch.isfinite(filtered[0]).nonzero().flatten().tolist())
    assert kept == brute_force(values, sampling)
    mirrored = set(torch.isfinite(filtered[1]).nonzero().flatten().tolist())
    assert mirrored == {len(values) - 1 - i for i in kept}
    survivors = filtered[0].isfinite()
    scaled = torch.tensor(values)[survivors] / temperature
    torch.testing.assert_close(filtered[0][survivors].softmax(0), scaled.softmax(0))


def test_draws_follow_the_distribution():
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    drawn = draw(logits.expand(20000, 4), SamplingConfig(temperature=1.5), torch.Generator().manual_seed(0))
    observed = drawn.bincount(minlength=4) / 20000
    torch.testing.assert_close(observed, (logits / 1.5).softmax(0), atol=0.015, rtol=0)
