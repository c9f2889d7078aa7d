"""Decoding with a KV cache equals a full forward pass: in pieces, with padded rows, and with copies of texts."""

import pytest
import torch
from model_cases import KINDS, config, decoder, random_tokens, variant

from widthwise.kernels.attention import visible
from widthwise.model.context import padding_documents
from widthwise.model.generate import pad_left

pytestmark = pytest.mark.usefixtures("float64")
TIGHT = {"rtol": 1e-10, "atol": 1e-10}


def cached_logits(model, tokens, chunks, capacity=None, is_real=None):
    """Return the logits of tokens that a model with a cache reads in chunks of these lengths."""
    assert sum(chunks) == tokens.shape[1]
    cache = model.new_cache(len(tokens), capacity or tokens.shape[1])
    pieces = tokens.split(chunks, dim=1)
    masks = [None] * len(pieces) if is_real is None else is_real.split(chunks, dim=1)
    return torch.cat([model(piece, cache, mask) for piece, mask in zip(pieces, masks, strict=True)], dim=1)


def assert_padded_equals_alone(model, lengths, chunks):
    """Compare padded rows of these lengths with each row alone: in one pass, and with a cache in chunks."""
    rows = [random_tokens(1, length, seed=length)[0].tolist() for length in lengths]
    tokens, is_real = pad_left(rows, torch.device("cpu"))
    for logits in (model(tokens, is_real=is_real), cached_logits(model, tokens, chunks, is_real=is_real)):
        for padded_logits, row in zip(logits, rows, strict=True):
            torch.testing.assert_close(padded_logits[-len(row) :], model(torch.tensor([row]))[0], **TIGHT)


@torch.no_grad()
@pytest.mark.parametrize(("shape", "name"), KINDS)
def test_cached_decoding_equals_the_full_forward_in_pieces_of_any_length(shape, name):
    model, tokens = decoder(variant(shape, name)), random_tokens(2, 8)
    full = model(tokens)
    assert full.std() > 0.1
    for chunks in ([1] * 8, [3, 1, 4]):
        torch.testing.assert_close(cached_logits(model, tokens, chunks, capacity=9), full, **TIGHT)


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "chunks"),
    [
        ("plain", [7, 1, 1]),
        ("gqa", [1] * 9),
        ("qk_norm", [4, 5]),
        ("windows", [1, 5, 1, 1, 1]),
        ("gemma2", [1, 5, 1, 1, 1]),
        ("slots_mixed_at_both_ends", [2, 6]),
        ("learned_positions", [7]),
        ("gpt2", [7, 1, 1]),
        ("slots_layer_norm_mlp", [4, 5]),
    ],
)
def test_left_padded_rows_equal_the_same_rows_alone(name, chunks):
    n = sum(chunks)
    assert_padded_equals_alone(decoder(variant("zigzag", name)), (n, n - 1, 3, 1), chunks)


def test_a_real_query_sees_real_keys_up_to_itself_and_a_padding_query_only_itself():
    """A query without any key would give NaN, which would spread."""
    real = torch.tensor([[False, False, True, True]])
    mask = visible(3, 4, padding_documents(real), torch.device("cpu"))
    assert mask.int().tolist() == [[[[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]]]


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "lengths"),
    [("gqa", (5, 2)), ("windows", (7, 3)), ("gemma2", (7, 3)), ("slots_mixed_at_both_ends", (4, 4))],
)
def test_a_repeated_cache_continues_each_text_in_several_ways(name: str, lengths: tuple[int, int]):
    model = decoder(variant("zigzag", name))
    rows = [random_tokens(1, length, seed=length)[0].tolist() for length in lengths]
    tokens, is_real = pad_left(rows, torch.device("cpu"))
    cache = model.new_cache(2, 8)
    model(tokens, cache, None if is_real.all() else is_real)
    repeated = cache.repeated(torch.tensor([1, 3]), cache.length + 3)
    following, ends = random_tokens(4, 3, seed=9), [3, 1, 2, 3]
    is_real = torch.arange(3) < torch.tensor(ends)[:, None]
    logits = model(following, repeated, is_real)
    for i, (text, end) in enumerate(zip((0, 1, 1, 1), ends)):
        alone = model(torch.cat((torch.tensor(rows[text]), following[i, :end]))[None])[0, len(rows[text]) :]
        torch.testing.assert_close(logits[i, :end], alone, **TIGHT)
    assert cache.length == len(tokens[0])


@torch.no_grad()
def test_a_cache_with_a_window_drops_tokens_outside_it():
    model, tokens = decoder(variant("zigzag", "windows")), random_tokens(2, 11)
    cache = model.new_cache(2, 11)
    assert [layer.keys.shape[2] for layer in cache.layers] == [3, 11, 3, 5, 3]
    full = model(tokens, cache)
    cache.rewind(10)
    torch.testing.assert_close(model(tokens[:, 10:], cache), full[:, 10:], **TIGHT)
    cache.rewind(9)
    with pytest.raises(ValueError, match="a cache that holds tokens from 8 on cannot continue at 9"):
        model(tokens[:, 9:], cache)
    cache.rewind(0)
    torch.testing.assert_close(model(tokens, cache), full, **TIGHT)


@torch.no_grad()
def test_a_full_cache_or_another_batch_size_is_refused_and_a_failed_pass_leaves_the_cache_usable():
    model, tokens = decoder(config("x")), random_tokens(1, 6)
    cache = model.new_cache(1, 6)
    model(tokens[:, :3], cache)
    for refused in (random_tokens(1, 4), random_tokens(2, 3)):
        with pytest.raises(ValueError, match=r"of 6 tokens with 3 of them filled cannot take"):
            model(refused, cache)
    with pytest.raises(IndexError):
        model(torch.tensor([[61]]), cache)
    torch.testing.assert_close(model(tokens[:, 3:], cache), model(tokens)[:, 3:], **TIGHT)


def test_real_and_cached_tokens_use_all_learned_positions_and_more_tokens_are_refused():
    model = decoder(config("x", positions={"n_positions": 19}, attention={"rope_base": None}))
    tokens = random_tokens(2, 20)
    model(tokens[:, :-1]).sum().backward()
    assert (model.positions.weight.grad != 0).any(dim=1).all()
    padded, is_real = pad_left([[5] * 19, [7, 8]], torch.device("cpu"))
    cache = model.new_cache(2, 25)
    pad = torch.nn.functional.pad
    with torch.no_grad():
        assert torch.isfinite(model(pad(padded, (4, 0)), cache, pad(is_real, (4, 0)))).all()
    for refused in (lambda: model(tokens), lambda: model.loss(tokens, tokens), lambda: model(tokens[:, -1:], cache)):
        with pytest.raises(ValueError, match="20 tokens do not fit into 19 learned positions"):
            refused()
