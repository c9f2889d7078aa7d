"""Learned positions. Decoders that have them are compared with the definition in test_decoder.py, with caches in
test_kv_cache.py.
"""

import pytest
import torch
from measured import on_meta
from model_cases import VARIANTS, config, decoder, random_tokens
from mtp_cases import STREAMS, mtp_decoder

from widthwise.config_io import UserError
from widthwise.model.decoder import Decoder, build
from widthwise.model.generate import SamplingConfig, generate, pad_left
from widthwise.model.mup import grouped_parameters
from widthwise.model.speculative import generate_drafted

N_POSITIONS = 19
POSITIONS = {"positions": {"n_positions": N_POSITIONS}}
GREEDY = SamplingConfig(temperature=0)
ALONE = {**POSITIONS, "attention": {"rope_base": None}}
"""Only the table tells places apart."""


@torch.no_grad()
def test_the_row_of_its_place_joins_each_token_behind_the_embedding_multiplier():
    model, tokens = decoder(config("x", **POSITIONS)), random_tokens(2, 7)
    stream = model.embed(tokens).prefix
    for place in range(7):
        expected = 3.0 * model.embedding.weight[tokens[:, place]] + model.positions.weight[place]
        torch.testing.assert_close(stream[:, place], expected)


@torch.no_grad()
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", ["learned_positions", "gpt2", "slots_layer_norm_mlp"])
@pytest.mark.parametrize("chunks", [[7], [7, 1, 1], [4, 5]])
def test_left_padded_rows_stand_where_the_same_rows_stand_alone(name, chunks):
    model, n = decoder(config("zigzag", **VARIANTS[name])), sum(chunks)
    rows = [random_tokens(1, length, seed=length)[0].tolist() for length in (n, n - 1, 3, 1)]
    tokens, is_real = pad_left(rows, torch.device("cpu"))
    cache = model.new_cache(4, n)
    pieces = zip(tokens.split(chunks, dim=1), is_real.split(chunks, dim=1), strict=True)
    logits = torch.cat([model(piece, cache, mask) for piece, mask in pieces], dim=1)
    for i, row in enumerate(rows):
        torch.testing.assert_close(logits[i, n - len(row) :], model(torch.tensor([row]))[0], rtol=1e-10, atol=1e-10)


def test_the_last_position_is_used_and_the_next_refused():
    model = decoder(config("x", **ALONE))
    tokens = random_tokens(2, N_POSITIONS + 1)
    model(tokens[:, :-1]).sum().backward()
    assert (model.positions.weight.grad != 0).any(dim=1).all()
    for refused in (lambda: model(tokens), lambda: model.loss(tokens, tokens)):
        with pytest.raises(ValueError, match="20 tokens do not fit into 19 learned positions"):
            refused()


@torch.no_grad()
def test_padding_takes_no_positions_and_cached_tokens_do():
    model = decoder(config("x", **ALONE))
    tokens, is_real = pad_left([[5] * N_POSITIONS, [7, 8]], torch.device("cpu"))
    padded = torch.nn.functional.pad(tokens, (4, 0)), torch.nn.functional.pad(is_real, (4, 0))
    cache = model.new_cache(2, N_POSITIONS + 6)
    assert torch.isfinite(model(padded[0], cache, padded[1])).all()
    with pytest.raises(ValueError, match="20 tokens do not fit into 19 learned positions"):
        model(tokens[:, -1:], cache)


@pytest.mark.parametrize("n_prompt", [1, 6, N_POSITIONS])
def test_generation_reads_as_many_tokens_as_there_are_positions_and_no_more(n_prompt):
    model, prompts = decoder(config("x", **ALONE)), [[3] * n_prompt, [4]]
    n_new = N_POSITIONS + 1 - n_prompt  # nothing reads the last token
    assert [len(found) for found in generate(model, prompts, n_new, GREEDY)] == [n_new, n_new]
    message = rf"max_new_tokens: got {n_new + 1} behind a prompt of {n_prompt}; .* no more than 19 tokens"
    with pytest.raises(UserError, match=message):
        generate(model, prompts, n_new + 1, GREEDY)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("stream", STREAMS)
def test_drafts_of_further_heads_see_later_tokens_as_training_does(stream):
    """Where a draft saw another embedding than in training, the caches of the heads would differ from the loss."""
    model = mtp_decoder(stream, 2, **POSITIONS)
    tokens = random_tokens(1, 11)
    with torch.no_grad():
        entered = model.slots(model.embed(tokens))
        whole = model.slots(model.stream(tokens[:, :9]))
        seen = []
        model.depths[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[1]))
        cache = model.new_mtp_cache(1, 11)
        model.mtp_slots(1, whole[:, :4], tokens[:, 1:5], cache)
        cache.advance(4)
        model.mtp_slots(1, whole[:, 4:], tokens[:, 5:10], cache)
        torch.testing.assert_close(torch.cat(seen, dim=1), entered[:, 1:10])


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("stream", STREAMS)
def test_drafting_is_greedy_decoding_up_to_the_last_position(stream):
    model, prompts = mtp_decoder(stream, 2, **POSITIONS), [[3, 1, 4], [2]]
    n_new = N_POSITIONS + 1 - 3
    assert generate_drafted(model, prompts, n_new)[0] == generate(model, prompts, n_new, GREEDY)
    with pytest.raises(UserError, match="max_new_tokens: got 18 behind a prompt of 3"):
        generate_drafted(model, prompts, n_new + 1)


def test_the_table_is_drawn_like_the_embedding_and_leaves_other_weights_of_the_seed_where_a_model_without_has_them():
    wide = {"positions": {"n_positions": 500}, "init": {"std": 0.3}}
    model, without = build(config("x", **wide), seed=3), build(config("x", init={"std": 0.3}), seed=3)
    assert model.positions.weight.shape == (500, 20)
    assert model.positions.weight.std().item() == pytest.approx(0.3, rel=0.05)
    assert torch.equal(model.embedding.weight, without.embedding.weight)
    assert torch.equal(model.head.weight, without.head.weight)
    cut = build(config("x", **wide | {"init": {"std": 0.3, "truncate_at": 1.0}}), seed=3)
    assert cut.positions.weight.abs().max() <= 0.3


@pytest.mark.parametrize("decays", [False, True])
def test_the_table_is_optimised_like_the_embedding(decays):
    model = build(config("x", **POSITIONS, init={"width_multiplier": 8}), 0)
    (group,) = (g for g in grouped_parameters(model, decays_embedding=decays) if "positions.weight" in g.names)
    assert (group.name, group.lr_factor, group.decays, group.are_hidden_matrices) == ("tables", 1.0, decays, False)
    assert "embedding.weight" in group.names


def test_the_table_is_as_wide_as_the_embeddings_and_counted_with_it():
    slots = {"kind": "hyper_connections", "slot_width": 4, "n_slots": 9}
    for residual, width in (({"kind": "plain"}, 20), (slots, 36)):
        resolved = config("uniform", **POSITIONS, residual=residual)
        model = on_meta(lambda resolved=resolved: Decoder(resolved))
        assert model.positions.weight.shape == (N_POSITIONS, width)
        without = config("uniform", residual=residual).costs()["embedding"]
        assert resolved.costs()["embedding"].params - without.params == N_POSITIONS * width
