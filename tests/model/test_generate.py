"""Generation: greedy decoding compared with a loop without a cache, drafts and the number of passes that they save, and
sampling compared with brute force.
"""

from itertools import cycle, islice, takewhile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cases import STREAMS, config, decoder, mtp_config, mtp_decoder, random_tokens

from widthwise.mistakes import UserError
from widthwise.model.decoder import build
from widthwise.model.generate import Drafter, SamplingConfig, draw, filter_logits, generate, generate_drafted

GREEDY = SamplingConfig(temperature=0)
PROMPTS = [[3, 1, 4, 1, 5, 9], [2], [6, 5, 3]]


def argmax_loop(model, prompt, n):
    """Return n tokens of greedy decoding without a cache."""
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(n):
            tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("shape", "endpoints"), [("x", "slim"), ("zigzag", "full")])
def test_greedy_equals_the_argmax_loop_without_cache_for_prompts_of_different_lengths(shape, endpoints):
    """So do a top-k of 1, a tiny top-p and a tiny temperature. Each continuation ends before its first EOS."""
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


def test_the_seed_determines_the_sample():
    model = decoder(config("x"), dtype=torch.float32)
    first, again, other = (generate(model, PROMPTS, 12, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    torch.manual_seed(99)  # has no effect
    assert generate(model, PROMPTS, 12, seed=1) == first


@pytest.mark.parametrize(
    ("prompts", "n", "message"),
    [
        ([], 3, "prompt: is empty"),
        ([[1], []], 3, "prompt: is empty"),
        ([[1], [2, 41]], 3, r"prompt: got token 41; the model has tokens 0 to 40"),
        ([[-1]], 3, "prompt: got token -1"),
        ([[1]], -1, "max_new_tokens: got -1; must be at least 0"),
    ],
)
def test_prompts_that_the_model_cannot_read_are_refused(prompts, n, message):
    model = mtp_decoder("plain", 1, vocab_size=41)
    for function in (generate, generate_drafted):
        with pytest.raises(UserError, match=message):
            function(model, prompts, n)


def brute_force(logits: list[float], sampling: SamplingConfig) -> set[int]:
    """Return the tokens that can be drawn."""
    order = sorted(range(len(logits)), key=lambda i: -logits[i])
    if sampling.top_k is not None:
        order = order[: sampling.top_k]
    scaled = torch.tensor([logits[i] / sampling.temperature for i in order], dtype=torch.float64)
    allowed, total = set(), 0.0
    for i, p in zip(order, scaled.softmax(0).tolist(), strict=True):
        if sampling.top_p < 1 and total >= sampling.top_p - 1e-12 and allowed:
            break
        allowed.add(i)
        total += p
    return allowed


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
    allowed = set(torch.isfinite(filtered[0]).nonzero().flatten().tolist())
    assert allowed == brute_force(values, sampling)
    mirrored = set(torch.isfinite(filtered[1]).nonzero().flatten().tolist())
    assert mirrored == {len(values) - 1 - i for i in allowed}
    survivors = filtered[0].isfinite()
    scaled = torch.tensor(values)[survivors] / temperature
    torch.testing.assert_close(filtered[0][survivors].softmax(0), scaled.softmax(0))


def test_draws_follow_the_distribution():
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0])
    drawn = draw(logits.expand(20000, 4), SamplingConfig(temperature=1.5), torch.Generator().manual_seed(0))
    observed = drawn.bincount(minlength=4) / 20000
    torch.testing.assert_close(observed, (logits / 1.5).softmax(0), atol=0.015, rtol=0)


def successor(n_depths: int, wrong_depths=(), **changes):
    """Return a model of 11 tokens that predicts 3 t + 1 after token t. So do its MTP depths, except wrong_depths, which
    predict the successor of an earlier token.

    All sublayers write 0, so that the stream is the embedding, one of 11 orthogonal rows. A depth returns the embedding
    of its token, or if it is wrong the slots that it reads.
    """
    resolved = mtp_config("plain", n_depths, vocab_size=11, d_model=20, **changes)
    model = build(resolved, seed=1, dtype=torch.float64)
    with torch.no_grad():
        for layer in (*model.layers, *(depth.layer for depth in model.depths)):
            layer.attention.w_o.weight.zero_()
            layer.ffn.w_down.weight.zero_()
        model.embedding.weight.copy_(torch.eye(11, 20))
        for token in range(11):
            model.head.weight[(3 * token + 1) % 11] = model.embedding.weight[token]
        for k, depth in enumerate(model.depths, start=1):
            halves = (torch.eye(20), torch.zeros(20, 20))
            depth.w_join.weight.copy_(torch.cat(halves if k in wrong_depths else halves[::-1], dim=1))
    return model


def successors_of_2(n: int) -> list[int]:
    return [*islice(cycle([7, 0, 1, 4, 2]), n)]


def whole_draft(model, text: torch.Tensor, k: int) -> torch.Tensor:
    """Return the token that depth k predicts after the text in a training pass, (1, 1)."""
    hidden = []
    hook = model.depths[k - 1].exit.register_forward_hook(lambda module, inputs, output: hidden.append(output))
    model.loss(text, text)
    hook.remove()
    return model.logits(hidden[0][:, -1:]).argmax(dim=-1)


@pytest.mark.usefixtures("float64")
class TestDrafts:
    @pytest.mark.parametrize(("stream", "n_depths"), list(zip(STREAMS, cycle([1, 2, 3]))))
    def test_drafted_decoding_equals_greedy_decoding(self, stream, n_depths):
        model = mtp_decoder(stream, n_depths)
        for max_new_tokens in (1, 2, 13):
            continuations, counts = generate_drafted(model, PROMPTS, max_new_tokens)
            assert continuations == generate(model, PROMPTS, max_new_tokens, GREEDY)
            assert counts.n_passes + counts.n_accepted == 3 * max_new_tokens

    def test_each_continuation_ends_before_its_first_eos(self):
        model = mtp_decoder("virtual_x", 3)
        whole = generate(model, PROMPTS, 9, GREEDY)
        for eos in {row[4] for row in whole}:
            expected = [row[: row.index(eos)] if eos in row else row for row in whole]
            assert generate_drafted(model, PROMPTS, 9, eos_id=eos)[0] == expected

    @pytest.mark.parametrize(("n_depths", "max_new_tokens"), [(1, 1), (1, 12), (3, 13), (3, 14), (5, 4)])
    def test_with_right_drafts_a_pass_adds_one_token_and_all_drafts(self, n_depths, max_new_tokens):
        continuations, counts = generate_drafted(successor(n_depths), [[7, 2]], max_new_tokens)
        assert continuations == [successors_of_2(max_new_tokens)]
        # The pass over the prompt adds one token, each further pass n_depths + 1, the last one as many as are missing.
        n_further = -(-(max_new_tokens - 1) // (n_depths + 1))
        assert counts.n_passes == 1 + n_further
        assert counts.n_drafted == counts.n_accepted == max_new_tokens - counts.n_passes
        for eos in continuations[0]:
            until_eos = continuations[0][: continuations[0].index(eos)]
            assert generate_drafted(successor(n_depths), [[7, 2]], max_new_tokens, eos_id=eos)[0] == [until_eos]
        record = counts.record()
        assert record["accept_rate"] == (1.0 if n_further and max_new_tokens > 1 + n_further else None)
        assert record["tokens_per_pass"] == max_new_tokens / (1 + n_further)
        assert record["tokens_per_second"] == pytest.approx(max_new_tokens / counts.seconds)

    def test_drafts_before_the_first_wrong_one_are_accepted(self):
        continuations, counts = generate_drafted(successor(3, wrong_depths=(2,)), [[2]], 11)
        assert continuations == [successors_of_2(11)]
        # After one token for the prompt, each pass accepts its first draft and adds one token, until two are missing.
        assert (counts.n_passes, counts.n_accepted) == (1 + 5, 5)
        assert counts.n_drafted == 3 + 3 + 3 + 3 + 1

    @torch.no_grad()
    @pytest.mark.parametrize(
        ("stream", "n_depths"), [("plain_x", 3), ("gqa", 2), ("virtual_static", 1), ("virtual_x", 3)]
    )
    def test_drafts_equal_the_predictions_of_whole_passes_over_known_tokens_and_drafts(self, stream, n_depths):
        """The calls of the drafter add different numbers of tokens to the text."""
        model, text = mtp_decoder(stream, n_depths), random_tokens(1, 14)
        drafter, n_read = Drafter(model, 14 + n_depths), 0
        slots = model.slots(model.stream(text))
        for n_known in (2, 3, 6, 7, 8, 12):
            tokens = torch.cat((text[:, :n_known], torch.zeros(1, 14 + n_depths - n_known, dtype=torch.long)), dim=1)
            drafter.draft(tokens, n_known, slots[:, n_read : n_known - 1], n_depths)
            n_read = n_known - 1
            expected = text[:, :n_known]
            for k in range(1, n_depths + 1):
                expected = torch.cat((expected, whole_draft(model, expected, k)), dim=1)
            assert torch.equal(tokens[:, : n_known + n_depths], expected)

    def test_a_model_reads_at_most_as_many_tokens_as_it_has_learned_positions(self):
        model = mtp_decoder("plain", 2, positions={"n_positions": 19})
        for n_prompt in (1, 6, 19):
            prompts, n_new = [[3] * n_prompt, [4]], 20 - n_prompt  # nothing reads the last token
            continuations = generate(model, prompts, n_new, GREEDY)
            assert [len(continuation) for continuation in continuations] == [n_new, n_new]
            assert generate_drafted(model, prompts, n_new)[0] == continuations
            message = rf"max_new_tokens: got {n_new + 1} after a prompt of {n_prompt}; .* at most 19 tokens"
            for generate_tokens in (lambda *arguments: generate(*arguments, GREEDY), generate_drafted):
                with pytest.raises(UserError, match=message):
                    generate_tokens(model, prompts, n_new + 1)
