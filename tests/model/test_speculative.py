"""Drafted decoding: what greedy decoding finds, in as many passes as the drafts allow."""

from itertools import cycle

import pytest
import torch
from model_cases import random_tokens
from mtp_cases import STREAMS, mtp_config, mtp_decoder

from widthwise.model.decoder import build
from widthwise.model.generate import Drafter, SamplingConfig, generate, generate_drafted

pytestmark = pytest.mark.usefixtures("float64")
GREEDY = SamplingConfig(temperature=0)
PROMPTS = [[3, 1, 4, 1, 5, 9], [2], [6, 5, 3]]


def successor(n_depths: int, wrong_depths=(), **changes):
    """A model of 11 tokens that says 3 t + 1 after t, whose depths do too, or say what follows the token before.

    Without updates a stream holds the embedding alone, here one of 11 orthogonal rows; a depth hands on the token it
    embeds, or where it is wrong the state it got.
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


def successors(token: int, n: int) -> list[int]:
    """The n tokens after one that is not 5, which alone follows itself."""
    found = []
    for _ in range(n):
        token = (3 * token + 1) % 11
        found.append(token)
    return found


@pytest.mark.parametrize(("stream", "n_depths"), list(zip(STREAMS, cycle([1, 2, 3]))))
def test_random_models_decode_as_greedy_decoding_does(stream, n_depths):
    model = mtp_decoder(stream, n_depths)
    for max_new_tokens in (1, 2, 13):
        found, counts = generate_drafted(model, PROMPTS, max_new_tokens)
        assert found == generate(model, PROMPTS, max_new_tokens, GREEDY)
        assert counts.n_passes + counts.n_accepted == 3 * max_new_tokens


def test_each_continuation_ends_before_its_first_eos():
    for model in (mtp_decoder("virtual_x", 3), successor(3)):
        whole = generate(model, PROMPTS, 9, GREEDY)
        for eos in {row[4] for row in whole}:
            expected = [row[: row.index(eos)] if eos in row else row for row in whole]
            assert generate_drafted(model, PROMPTS, 9, eos_id=eos)[0] == expected


@pytest.mark.parametrize(("n_depths", "max_new_tokens"), [(1, 1), (1, 12), (3, 13), (3, 14), (5, 4)])
def test_with_drafts_that_are_always_right_a_pass_adds_one_token_and_all_drafts(n_depths, max_new_tokens):
    found, counts = generate_drafted(successor(n_depths), [[7, 2]], max_new_tokens)
    assert found == [successors(2, max_new_tokens)]
    # The prompt's pass adds one token; each further one as many as there are depths and one, the last what is missing.
    n_further = -(-(max_new_tokens - 1) // (n_depths + 1))
    assert counts.n_passes == 1 + n_further
    assert counts.n_drafted == counts.n_accepted == max_new_tokens - counts.n_passes
    record = counts.record()
    assert record["accept_rate"] == (1.0 if n_further and max_new_tokens > 1 + n_further else None)
    assert record["tokens_per_pass"] == max_new_tokens / (1 + n_further)
    assert record["tokens_per_second"] == pytest.approx(max_new_tokens / counts.seconds)


def test_drafts_up_to_the_first_wrong_one_are_taken():
    found, counts = generate_drafted(successor(3, wrong_depths=(2,)), [[2]], 11)
    assert found == [successors(2, 11)]
    # After the prompt's one token each pass takes the first of its drafts and adds its own, until two are left to find.
    assert (counts.n_passes, counts.n_accepted) == (1 + 5, 5)
    assert counts.n_drafted == 3 + 3 + 3 + 3 + 1


@torch.no_grad()
@pytest.mark.parametrize(("stream", "n_depths"), [("plain_x", 3), ("gqa", 2), ("virtual_static", 1), ("virtual_x", 3)])
def test_drafts_are_those_of_whole_passes_over_what_is_known_and_drafted(stream, n_depths):
    """However the text grew, and whatever was drafted on the way."""
    model, text = mtp_decoder(stream, n_depths), random_tokens(1, 14)
    drafter, n_seen = Drafter(model, 14 + n_depths), 0
    slots = model.slots(model.stream(text))
    for n_known in (2, 3, 6, 7, 8, 12):
        tokens = torch.cat((text[:, :n_known], torch.zeros(1, 14 + n_depths - n_known, dtype=torch.long)), dim=1)
        drafter.draft(tokens, n_known, slots[:, n_seen : n_known - 1], n_depths)
        n_seen = n_known - 1
        expected = text[:, :n_known]
        for k in range(1, n_depths + 1):
            expected = torch.cat((expected, whole_draft(model, expected, k)), dim=1)
        assert torch.equal(tokens[:, : n_known + n_depths], expected)


def whole_draft(model, text: torch.Tensor, k: int) -> torch.Tensor:
    """What depth k takes for the token after the text, from the last position that a training pass asks: (1, 1)."""
    found = []
    hook = model.depths[k - 1].exit.register_forward_hook(lambda module, inputs, output: found.append(output))
    model.loss(text, text)
    hook.remove()
    return model.logits(found[0][:, -1:]).argmax(dim=-1)
