import pytest
import torch
from model_cases import CASES, SHAPES_AND_ENDPOINTS, VARIANTS, config, decoder, random_tokens, variant

from widthwise.model.generate import pad_left

pytestmark = pytest.mark.usefixtures("float64")
TIGHT = {"rtol": 1e-10, "atol": 1e-10}


def cached_logits(model, tokens, chunks, capacity=None, is_real=None):
    """Logits of the tokens fed to a cache in chunks of these lengths."""
    assert sum(chunks) == tokens.shape[1]
    cache = model.new_cache(len(tokens), capacity or tokens.shape[1])
    pieces = tokens.split(chunks, dim=1)
    masks = [None] * len(pieces) if is_real is None else is_real.split(chunks, dim=1)
    return torch.cat([model(piece, cache, mask) for piece, mask in zip(pieces, masks, strict=True)], dim=1)


@torch.no_grad()
@pytest.mark.parametrize(("shape", "endpoints"), SHAPES_AND_ENDPOINTS)
def test_cached_decoding_equals_the_full_forward(shape, endpoints):
    model, tokens = decoder(config(shape, endpoints)), random_tokens(3, 9)
    full = model(tokens)
    assert full.std() > 0.1
    for chunks in ([1] * 9, [9], [4, 5], [5, 1, 1, 1, 1], [1, 3, 1, 4]):
        torch.testing.assert_close(cached_logits(model, tokens, chunks, capacity=11), full, **TIGHT)


@torch.no_grad()
@pytest.mark.parametrize(("shape", "name"), CASES)
def test_cached_decoding_of_every_variant(shape, name):
    model = decoder(variant(shape, name))
    tokens = random_tokens(2, 8)
    for chunks in ([1] * 8, [3, 5]):
        torch.testing.assert_close(cached_logits(model, tokens, chunks), model(tokens), **TIGHT)


@torch.no_grad()
def test_cached_decoding_with_learned_widening():
    changes = VARIANTS["gqa"] | {"residual": {"kind": "plain", "resize": "projection"}}
    model, tokens = decoder(config("zigzag", **changes)), random_tokens(2, 8)
    for chunks in ([1] * 8, [3, 5]):
        torch.testing.assert_close(cached_logits(model, tokens, chunks), model(tokens), **TIGHT)


@torch.no_grad()
@pytest.mark.parametrize("name", ["plain", "gqa", "qk_norm", "slots_mixed_at_both_ends"])
@pytest.mark.parametrize("chunks", [[7], [7, 1, 1], [1] * 9, [4, 5], [2, 6]])
def test_left_padded_rows_equal_the_same_rows_alone(name, chunks):
    model = decoder(variant("zigzag", name))
    n = sum(chunks)
    rows = [random_tokens(1, length, seed=length)[0].tolist() for length in (n, n - 1, 3, 1)]
    tokens, is_real = pad_left(rows, torch.device("cpu"))
    logits = cached_logits(model, tokens, chunks, is_real=is_real)
    uncached = model(tokens, is_real=is_real)
    for i, row in enumerate(rows):
        alone = model(torch.tensor([row]))[0]
        torch.testing.assert_close(logits[i, n - len(row) :], alone, **TIGHT)
        torch.testing.assert_close(uncached[i, n - len(row) :], alone, **TIGHT)


@torch.no_grad()
def test_padding_is_remembered_when_later_tokens_come_without_a_mask():
    model = decoder(config("x"))
    rows = [random_tokens(1, length, seed=length)[0].tolist() for length in (5, 2)]
    tokens, is_real = pad_left(rows, torch.device("cpu"))
    following = random_tokens(2, 4, seed=9)
    cache = model.new_cache(2, 9)
    model(tokens, cache, is_real)
    logits = torch.cat((model(following[:, :1], cache), model(following[:, 1:], cache)), dim=1)
    for i, row in enumerate(rows):
        alone = model(torch.cat((torch.tensor(row), following[i]))[None])[0, len(row) :]
        torch.testing.assert_close(logits[i], alone, **TIGHT)


@torch.no_grad()
@pytest.mark.parametrize("lengths", [(5, 2), (4, 4)])
@pytest.mark.parametrize("name", ["gqa", "slots_mixed_at_both_ends"])
def test_a_repeated_cache_continues_each_text_in_several_ways(name: str, lengths: tuple[int, int]):
    model = decoder(variant("zigzag", name))
    rows = [random_tokens(1, length, seed=length)[0].tolist() for length in lengths]
    tokens, is_real = pad_left(rows, torch.device("cpu"))
    cache = model.new_cache(2, 6)
    model(tokens, cache, None if is_real.all() else is_real)
    repeated = cache.repeated(torch.tensor([1, 3]), cache.length + 3)
    following, ends = random_tokens(4, 3, seed=9), [3, 1, 2, 3]
    is_real = torch.arange(3) < torch.tensor(ends)[:, None]
    logits = model(following, repeated, is_real)
    for i, (of, end) in enumerate(zip((0, 1, 1, 1), ends)):
        alone = model(torch.cat((torch.tensor(rows[of]), following[i, :end]))[None])[0, len(rows[of]) :]
        torch.testing.assert_close(logits[i, :end], alone, **TIGHT)
    assert cache.length == len(tokens[0])


@torch.no_grad()
def test_padding_does_not_change_what_the_padding_holds():
    model = decoder(config("x"))
    tokens, is_real = pad_left([[4, 5, 6, 7], [8]], torch.device("cpu"))
    other = torch.where(is_real, tokens, torch.full_like(tokens, 33))
    torch.testing.assert_close(model(tokens, is_real=is_real)[is_real], model(other, is_real=is_real)[is_real], **TIGHT)


def test_every_layer_has_its_own_cache_shape():
    resolved = config(
        "zigzag",
        attention={"n_heads": None, "head_dim": 2, "kv_group_size": 2},
        layers={1: {"attention": {"v_head_dim": 5}}, 3: {"attention": {"v_head_dim": 1}}},
    )
    cache = decoder(resolved).new_cache(3, 11)
    shapes = [(3, layer.attention.n_kv_heads, 11, layer.attention.head_dim) for layer in resolved.layers]
    assert [tuple(layer.keys.shape) for layer in cache.layers] == shapes
    assert [layer.values.shape[:3] for layer in cache.layers] == [shape[:3] for shape in shapes]
    assert [layer.values.shape[3] for layer in cache.layers] == [2, 5, 2, 1, 2]
    assert len(set(shapes)) == 5
    assert cache.n_bytes == 3 * 11 * resolved.cost().kv_bytes(bytes_per_element=8)


def test_autocast_caches_in_the_autocast_type():
    torch.set_default_dtype(torch.float32)
    model, tokens = decoder(config("x"), dtype=torch.float32), random_tokens(2, 9)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        cache = model.new_cache(2, 9)
        logits = torch.cat((model(tokens[:, :5], cache), model(tokens[:, 5:], cache)), dim=1)
        full = model(tokens)
    assert cache.layers[0].keys.dtype == torch.bfloat16
    assert (logits - full).norm() < 0.05 * full.norm()


def test_a_failed_pass_leaves_the_cache_usable():
    model, tokens = decoder(config("x")), random_tokens(1, 6)
    cache = model.new_cache(1, 6)
    with torch.no_grad():
        model(tokens[:, :3], cache)
        with pytest.raises(IndexError):
            model(torch.tensor([[61]]), cache)
        torch.testing.assert_close(model(tokens[:, 3:], cache), model(tokens)[:, 3:], **TIGHT)


def test_a_full_cache_and_a_wrong_batch_are_refused():
    model = decoder(config("x"))
    cache = model.new_cache(2, 4)
    with torch.no_grad(), pytest.raises((RuntimeError, ValueError, AssertionError)):
        model(random_tokens(2, 5), cache)
    with torch.no_grad(), pytest.raises((RuntimeError, ValueError, AssertionError)):
        model(random_tokens(1, 3), cache)
