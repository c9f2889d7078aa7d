"""All forms of attention against the literal one; and which form takes what."""

import pytest
import torch
from comparing import assert_forms_agree, with_gradients
from measured import kept_bytes
from thinned import every_pair, in_turn
from torch.nn.attention import SDPBackend, sdpa_kernel

from widthwise.kernels import attention as kernel
from widthwise.kernels import attention_in_blocks
from widthwise.kernels.attention import (
    attention,
    one_query_attention,
    reference_attention,
    sdpa_attention,
)
from widthwise.kernels.attention_in_blocks import Blocks, Scoring

in_blocks = attention_in_blocks.attention_in_blocks
SCALE = 0.7
PLAIN = Scoring(SCALE)


def heads(shape, dtype=torch.float64, n_keys=None):
    """Queries, keys and values as projections leave them: (B, heads, T, size), in memory (B, T, heads, size)."""
    n_texts, n_heads, n_kv_heads, n_queries, head_dim, v_head_dim = shape
    generator = torch.Generator().manual_seed(0)
    n_keys = n_keys or n_queries
    shapes = [(n_queries, n_heads, head_dim), (n_keys, n_kv_heads, head_dim), (n_keys, n_kv_heads, v_head_dim)]
    drawn = (torch.randn(n_texts, *each, generator=generator, dtype=torch.float64) for each in shapes)
    return [x.to(dtype).transpose(1, 2).requires_grad_() for x in drawn]


def documents_of(kind, n_texts, n_keys):
    """None, rows of documents in a line, documents that take turns, or padding on the left."""
    places = torch.arange(n_keys).expand(n_texts, n_keys)
    shift = torch.arange(n_texts)[:, None]
    if kind == "in a line":
        return (places + shift) // 5
    if kind == "in turns":
        return (places + shift) % 3
    if kind == "padded":
        return torch.where(places < 2 * shift, -1 - places, 0)
    return None


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks, of which the last ones are not full."""
    monkeypatch.setattr(attention_in_blocks, "rows_at_once", lambda *_: 4)
    monkeypatch.setattr(attention_in_blocks, "SCORE_BYTES", {"cpu": 8 * 4 * 11 * 2})


SHAPES = [(2, 3, 3, 11, 5, 5), (3, 4, 2, 13, 6, 3), (2, 6, 1, 9, 3, 7), (1, 1, 1, 1, 2, 1), (2, 10, 2, 4, 3, 4)]
"""B, n_heads, n_kv_heads, T, head_dim, v_head_dim."""


def plain_attention(*arguments):
    """Without torch's fused kernels, which take values of the size of keys alone."""
    with sdpa_kernel(SDPBackend.MATH):
        return sdpa_attention(*arguments)


def compiled_attention(*arguments):
    """The chosen form in one graph."""
    torch._dynamo.reset()
    return torch.compile(attention, backend="aot_eager", fullgraph=True)(*arguments)


def seen(n_queries, n_keys, documents, window):
    """The keys that each query sees, pair by pair."""
    documents = torch.zeros(1, n_keys) if documents is None else documents
    return torch.tensor(
        [
            [
                [row[k] == row[q] and k <= q and (window is None or q - k < window) for k in range(n_keys)]
                for q in range(n_keys - n_queries, n_keys)
            ]
            for row in documents.tolist()
        ]
    )[:, None]


FORMS = [
    *((form, None) for form in (reference_attention, in_blocks, sdpa_attention, plain_attention, compiled_attention)),
    *((form, cap) for form in (reference_attention, attention, compiled_attention) for cap in (0.3, 2.0, 50.0)),
]
"""Each form, and the caps that it takes."""


@every_pair(
    ("window", [None, 1, 3, 6, 40]),
    ("kind", [None, "in a line", "in turns", "padded"]),
    ("n_before", [0, 1, 6]),
    ("shape", SHAPES),
    (("form", "cap"), FORMS),
)
def test_values_and_gradients_are_those_of_the_literal_form(form, cap, shape, n_before, kind, window):
    n_texts, n_keys = shape[0], shape[3] + n_before
    documents = documents_of(kind, n_texts, n_keys)

    def literal(queries, keys, values, scoring, documents):
        keys, values = (x.repeat_interleave(shape[1] // shape[2], dim=1) for x in (keys, values))
        scores = SCALE * queries @ keys.mT
        if cap is not None:
            scores = cap * torch.tanh(scores / cap)
        return scores.masked_fill(~seen(shape[3], n_keys, documents, window), -torch.inf).softmax(-1) @ values

    arguments = *heads(shape, n_keys=n_keys), Scoring(SCALE, window, cap), documents
    assert_forms_agree(form, literal, *arguments, rtol=1e-10, atol=1e-11)


@in_turn(
    ("shape", SHAPES[:3]),
    ("kind", [None, "in a line"]),
    (("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)]),
    ("cap", [None, None, 2.0, 2.0]),
)
def test_so_they_are_in_fewer_bits(shape, kind, dtype, bound, cap):
    inputs, documents = heads(shape, dtype), documents_of(kind, shape[0], shape[3])
    exact = [x.detach().double().requires_grad_() for x in inputs]
    scoring = Scoring(SCALE, cap=cap)
    ours = with_gradients(in_blocks, *inputs, scoring, documents)
    truth = with_gradients(reference_attention, *exact, scoring, documents)
    for own, expected in zip(ours, truth, strict=True):
        assert own.dtype == dtype
        assert (own - expected).norm() <= bound * expected.norm()


def test_blocks_leave_out_what_no_query_of_theirs_sees():
    queries, keys, _ = heads((1, 1, 1, 12, 2, 2))
    documents = torch.tensor([[0] * 5 + [1] * 4 + [2] * 3])
    assert [block.keys for block in Blocks(queries, keys, None)] == [slice(0, n) for n in (4, 8, 12)]
    assert [block.keys for block in Blocks(queries, keys, documents)] == [slice(0, 4), slice(0, 8), slice(5, 12)]
    assert [block.keys for block in Blocks(queries, keys, None, 3)] == [slice(0, 4), slice(2, 8), slice(6, 12)]
    assert [block.keys for block in Blocks(queries, keys, documents, 3)] == [slice(0, 4), slice(2, 8), slice(6, 12)]


@in_turn(("kind", [None, "in turns", "padded"]), ("n_queries", [1, 5, 13]))
def test_keys_before_the_window_are_never_read(kind, n_queries):
    """They may hold anything, such as what an older text left in a cache."""
    queries, keys, values = heads((2, 4, 2, n_queries, 6, 6), n_keys=17)
    documents = documents_of(kind, 2, 17)
    truth = reference_attention(queries, keys, values, Scoring(SCALE, 4), documents)
    with torch.no_grad():
        for x in (keys, values):
            x[:, :, : max(0, 17 - n_queries - 3)] = torch.nan
    torch.testing.assert_close(attention(queries, keys, values, Scoring(SCALE, 4), documents), truth)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autocast_makes_the_types_that_torch_makes(dtype):
    inputs = heads((2, 4, 2, 13, 6, 6), dtype)
    with torch.autocast("cpu", torch.bfloat16):
        ours, truth = (with_gradients(form, *inputs, PLAIN) for form in (in_blocks, sdpa_attention))
    for own, expected in zip(ours, truth, strict=True):
        assert own.dtype == expected.dtype
        assert (own - expected).norm() <= 2e-2 * expected.norm()


def test_autograd_keeps_queries_keys_and_values_only():
    inputs = heads((2, 4, 2, 13, 6, 3))
    assert kept_bytes(lambda: in_blocks(*inputs, PLAIN), without=inputs) == 0


@pytest.fixture
def taken(monkeypatch):
    """The form that takes so many queries of a type."""

    def form_of(n_queries, dtype=torch.bfloat16, documents=None, **options):
        forms = []
        for form in (in_blocks, sdpa_attention, reference_attention):
            monkeypatch.setattr(kernel, form.__name__, lambda *_, form=form: forms.append(form))
        attention(*heads((1, 2, 2, n_queries, 2, 2), dtype), Scoring(SCALE, **options), documents)
        (form,) = forms
        return form

    return form_of


def test_blocks_take_passes_in_bf16_long_texts_of_several_documents_or_windows_and_capped_scores(taken):
    documents = torch.zeros(1, 512, dtype=torch.long)
    assert taken(32) == in_blocks
    assert taken(31) == sdpa_attention
    with torch.autocast("cpu", torch.bfloat16):
        assert taken(32, torch.float32) == in_blocks
    for dtype in (torch.float32, torch.float64):
        assert taken(512, dtype) == taken(512, dtype, window=129) == sdpa_attention
        assert taken(512, dtype, documents) == taken(512, dtype, window=128) == in_blocks
        assert taken(511, dtype, documents[:, 1:]) == sdpa_attention
    for dtype in (torch.bfloat16, torch.float64):
        assert taken(1, dtype, cap=9.0) == taken(5, dtype, cap=9.0) == in_blocks


def test_the_environment_and_torch_can_ask_for_plain_forms(taken, monkeypatch):
    with sdpa_kernel(SDPBackend.MATH):
        assert (taken(64), taken(64, cap=9.0)) == (sdpa_attention, reference_attention)
    monkeypatch.setenv("WIDTHWISE_KERNELS", "reference")
    assert (taken(64), taken(64, cap=9.0)) == (sdpa_attention, reference_attention)


@in_turn(
    ("kind", [None, "in turns", "padded"]),
    ("n_bytes", [1, 2 * 13 * 5 * 8, 10**9]),
    ("shape", [(2, 3, 3, 1, 5, 5), (3, 4, 2, 1, 5, 3), (2, 6, 1, 1, 5, 7)]),
)
@torch.no_grad()
def test_the_form_of_one_query_is_the_reference_also_over_a_cache_with_room(shape, n_bytes, kind, monkeypatch):
    monkeypatch.setattr(kernel, "BLOCK_BYTES", n_bytes)
    queries, *cached = heads(shape, n_keys=13)
    documents = documents_of(kind, shape[0], 13)
    room = [torch.full((*x.shape[:2], 20, x.shape[-1]), torch.nan, dtype=x.dtype) for x in cached]
    for whole, x in zip(room, cached, strict=True):
        whole[:, :, :13] = x
    for cap in (None, 0.6):
        scoring = Scoring(SCALE, cap=cap)
        truth = reference_attention(queries, *cached, scoring, documents)
        ours = one_query_attention(queries, *(whole[:, :, :13] for whole in room), scoring, documents)
        torch.testing.assert_close(ours, truth, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(attention(queries, *cached, scoring, documents), truth)
