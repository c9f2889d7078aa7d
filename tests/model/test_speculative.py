from itertools import cycle

import pytest
import torch
from model_cases import random_tokens
from mtp_cases import STREAMS, mtp_config, mtp_decoder
from torch.utils._python_dispatch import TorchDispatchMode

from widthwise.config_io import UserError
from widthwise.model.decoder import build
from widthwise.model.generate import SamplingConfig, generate
from widthwise.model.speculative import Drafter, Speculation, generate_drafted, stream_drafted

pytestmark = pytest.mark.usefixtures("float64")
GREEDY = SamplingConfig(temperature=0)
PROMPTS = [[3, 1, 4, 1, 5, 9], [2], [6, 5, 3]]
TIGHT = {"rtol": 1e-10, "atol": 1e-10}
MOE = {"ffn": {"kind": "moe", "n_experts": 5, "top_k": 2, "ratio": 0.5}}


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


def test_a_mixture_and_a_dynamic_width_decode_as_greedy_decoding_does():
    for changes in (MOE, {"ffn": {"kind": "dynamic", "ratio": 1.7}}):
        model = mtp_decoder("virtual_x", 2, **changes)
        assert generate_drafted(model, PROMPTS, 9)[0] == generate(model, PROMPTS, 9, GREEDY)


def test_each_continuation_ends_before_its_first_eos():
    for model in (mtp_decoder("virtual_x", 3), successor(3)):
        whole = generate(model, PROMPTS, 15, GREEDY)
        for eos in {token for row in whole for token in row}:
            expected = [row[: row.index(eos)] if eos in row else row for row in whole]
            assert generate_drafted(model, PROMPTS, 15, eos_id=eos)[0] == expected


@pytest.mark.parametrize(("n_depths", "max_new_tokens"), [(1, 1), (1, 12), (2, 4), (3, 13), (3, 14), (5, 4), (5, 12)])
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


def test_with_drafts_that_are_always_wrong_a_pass_adds_one_token():
    found, counts = generate_drafted(successor(2, wrong_depths=(1, 2)), [[2]], 9)
    assert found == [successors(2, 9)]
    n_drafted = sum(min(2, n_left - 1) for n_left in range(1, 9))  # never more than could be used
    assert (counts.n_passes, counts.n_drafted, counts.n_accepted) == (9, n_drafted, 0)


def test_drafts_up_to_the_first_wrong_one_are_taken():
    found, counts = generate_drafted(successor(3, wrong_depths=(2,)), [[2]], 11)
    assert found == [successors(2, 11)]
    # After the prompt's one token each pass takes the first of its drafts and adds its own, until two are left to find.
    assert (counts.n_passes, counts.n_accepted) == (1 + 5, 5)
    assert counts.n_drafted == 3 + 3 + 3 + 3 + 1


@torch.no_grad()
@pytest.mark.parametrize(("stream", "rewound"), list(zip(STREAMS, cycle([0, 1, 4]))))
def test_a_rewound_cache_goes_on_as_if_the_tokens_had_not_been(stream, rewound):
    model, tokens, others = mtp_decoder(stream), random_tokens(2, 9), random_tokens(2, 9, seed=1)
    cache = model.new_cache(2, 9)
    model(tokens[:, :4], cache)
    model(others[:, 4:8], cache)
    cache.rewind(rewound)
    assert cache.length == rewound
    text = torch.cat((tokens[:, :rewound], others[:, rewound:]), dim=1)
    logits = torch.cat((model(text[:, rewound:6], cache), model(text[:, 6:], cache)), dim=1)
    torch.testing.assert_close(logits, model(text)[:, rewound:], **TIGHT)


def test_a_cache_cannot_be_rewound_to_what_it_does_not_hold():
    cache = mtp_decoder().new_cache(1, 5)
    for length in (1, -1):
        with pytest.raises(ValueError, match="rewound"):
            cache.rewind(length)


@torch.no_grad()
@pytest.mark.parametrize(("stream", "n_depths"), list(zip(STREAMS, cycle([3, 1, 2]))))
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


def test_caches_have_a_layer_for_each_depth():
    resolved = mtp_config("gqa", 3)
    cache = build(resolved, seed=1).new_mtp_cache(2, 7)
    attention = resolved.mtp.layer.attention
    shapes = [tuple(layer.keys.shape) for layer in cache.layers]
    assert shapes == [(2, attention.n_kv_heads, 7, attention.head_dim)] * 3


def test_nothing_to_draft_and_nothing_to_draft_with():
    model = mtp_decoder("plain", 2)
    found, counts = generate_drafted(model, PROMPTS, 0)
    assert found == [[], [], []]
    assert counts.record() == {"accept_rate": None, "tokens_per_pass": None, "tokens_per_second": None}
    for prompts in ([], [[]], [[1], []]):
        with pytest.raises(UserError, match="prompt"):
            generate_drafted(model, prompts, 2)
    bare = build(mtp_config().model_copy(update={"mtp": None}), seed=1)
    with pytest.raises(UserError, match=r"model\.mtp"):
        generate_drafted(bare, PROMPTS, 2)


def test_a_cache_beyond_memory_is_refused_when_drafting():
    with pytest.raises(UserError, match=r"a cache for \d+ tokens does not fit into memory"):
        generate_drafted(mtp_decoder(), PROMPTS, 2**45)


def test_a_stream_says_what_each_pass_added():
    counts = Speculation()
    added = list(stream_drafted(successor(2), [2], 6, counts))
    assert added == [successors(2, 1), successors(2, 4)[1:], successors(2, 6)[4:]]


class Looks(TorchDispatchMode):
    """Counts the numbers that Python asks of tensors one by one, each of which waits for a GPU."""

    n = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.n += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("n_depths", [1, 3])
def test_neither_a_depth_nor_a_pass_looks_at_single_numbers(n_depths):
    model = mtp_decoder("virtual_x", n_depths)
    with Looks() as looks:
        generate_drafted(model, PROMPTS, 9)
    assert looks.n == 0


def test_neither_does_a_step_of_plain_decoding():
    model, found = mtp_decoder("plain", 1), []
    for max_new_tokens in (2, 9):
        with Looks() as looks:
            generate(model, PROMPTS, max_new_tokens, GREEDY)
        found.append(looks.n)
    assert found[0] == found[1]
