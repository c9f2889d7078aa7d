"""Embeddings of n-grams: which rows, also drafted; what they cost. Whole texts are in test_decoder.py, pieces and rows
with padding in test_kv_cache.py, documents in test_packed_rows.py.
"""

import pytest
import torch
from expansions import add_layers, widen_stream
from growth_contract import assert_preserved
from measured import on_meta, parameters_by_part
from model_cases import VARIANTS, config, decoder, random_tokens

from widthwise.config_io import UserError
from widthwise.growth.plan import plan_growth
from widthwise.interop.hf_export import hf_config
from widthwise.interop.widthwise_format import Widthwise
from widthwise.model.decoder import Decoder, build
from widthwise.model.generate import SamplingConfig, generate, generate_drafted
from widthwise.model.input_tables import NGramsConfig
from widthwise.model.input_tables_module import NGrams

NGRAMS = VARIANTS["ngrams"]
GREEDY = SamplingConfig(temperature=0)
pytestmark = pytest.mark.usefixtures("float64")


def test_an_ngram_has_one_row_wherever_it_stands_and_another_where_it_is_no_whole_one():
    model = decoder(config("uniform", ngrams={"max_n": 3, "n_rows": 50021}))
    text = torch.tensor([[7, 8, 9, 1, 7, 8, 9, 60]])
    rows = model.ngrams(text)[0]
    assert torch.equal(rows[2], rows[6])
    assert not torch.isclose(rows[1], rows[5]).any()  # before the first 7 stands nothing, before the second a 1
    assert not torch.isclose(rows[0], model.ngrams.tables[0].weight[0] + model.ngrams.tables[1].weight[0]).any()


def test_rows_are_spread_evenly_whatever_factor_they_share_with_the_vocabulary():
    """All 61^2 pairs, beside what a random function would leave empty."""
    pairs = torch.cartesian_prod(torch.arange(61), torch.arange(61))
    for n_rows in (61, 64, 1000, 4096):
        (hashed,) = NGrams(NGramsConfig(max_n=2, n_rows=n_rows), 61, 3)._hashes(pairs, torch.zeros_like(pairs))
        expected = n_rows * (1 - (1 - 1 / n_rows) ** len(pairs))
        assert len(set(hashed[:, 1].tolist())) > 0.9 * expected
        assert hashed.min() >= 0
        assert hashed.max() < n_rows


def test_what_was_taken_back_is_no_part_of_an_ngram():
    model = decoder(config("x", **NGRAMS))
    tokens, cache = random_tokens(1, 9), model.new_cache(1, 12)
    with torch.no_grad():
        model(tokens[:, :7], cache)
        model(random_tokens(1, 5, seed=4), cache)
        cache.rewind(7)
        torch.testing.assert_close(model(tokens[:, 7:], cache), model(tokens)[:, 7:], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("residual", [{"kind": "plain"}, {"kind": "hyper_connections", "slot_width": 4, "n_slots": 10}])
def test_drafting_finds_what_greedy_decoding_finds(residual):
    model = decoder(config("uniform", **NGRAMS, residual=residual, mtp={"n_depths": 2}))
    prompts = [[5, 9, 3, 3, 1], [8]]
    drafted, counts = generate_drafted(model, prompts, 12)
    assert drafted == generate(model, prompts, 12, GREEDY)
    assert counts.n_drafted > 0


@pytest.mark.parametrize("k", [1, 2])
def test_a_head_drafts_with_the_ngrams_that_it_was_trained_with(k):
    """The slots of a depth from its cache, against those of the whole text."""
    model, tokens = decoder(config("uniform", **NGRAMS, mtp={"n_depths": 2})), random_tokens(1, 9)
    cache, seen = model.new_cache(1, 9, of_mtp=True), []
    with torch.no_grad():
        slots = model.slots(model.stream(tokens))[:, : 9 - k]
        whole = model.mtp_slots(k, slots, tokens[:, k:], model.new_cache(1, 9, of_mtp=True), tokens[:, :k])
        for i in range(9 - k):
            before = tokens[:, max(0, i + k - model.n_tokens_before) : i + k]
            seen.append(model.mtp_slots(k, slots[:, i : i + 1], tokens[:, i + k : i + k + 1], cache, before))
            cache.advance(1)
    torch.testing.assert_close(torch.cat(seen, dim=1), whole, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("embedding", ["direct", "expand"])
def test_costs_are_those_of_the_built_tables(embedding):
    residual = {"kind": "hyper_connections", "n_fractions": 2, "n_slots": 3, "embedding": embedding}
    model, plain = (config("uniform", residual=residual, **changes) for changes in (NGRAMS, {}))
    assert {part: cost.params for part, cost in model.costs().items()} == parameters_by_part(
        on_meta(lambda: Decoder(model))
    )
    added = 3 * 23 * model.residual.embedding_width(20)
    assert model.cost().params - plain.cost().params == added
    assert model.cost().flops == plain.cost().flops


def test_a_model_starts_as_the_one_without_and_learns_at_once():
    with_, without = (build(config("x", **changes), 3, dtype=torch.float64) for changes in (NGRAMS, {}))
    tokens = random_tokens(2, 9)
    assert torch.equal(with_(tokens), without(tokens))
    with_.loss(tokens, tokens.flip(1)).objective.backward()
    assert all((table.weight.grad != 0).any() for table in with_.ngrams.tables)


def test_ngrams_join_and_grow_with_the_stream_and_other_tables_are_refused():
    old, with_ngrams = config("uniform"), config("uniform", **NGRAMS)
    for model, wanted in ((old, (with_ngrams,)), (with_ngrams, widen_stream(with_ngrams, 12))):
        assert_preserved(plan_growth(model, *wanted))
    assert_preserved(plan_growth(with_ngrams, *add_layers(with_ngrams, [2])))
    for ngrams in (None, {"max_n": 4, "n_rows": 24}, {"max_n": 3, "n_rows": 23}):
        with pytest.raises(UserError, match=r"^ngrams: got .*; growth has no conversion for it"):
            plan_growth(with_ngrams, config("uniform", ngrams=ngrams))


def test_no_format_has_them():
    model = config("uniform", **NGRAMS, embedding_multiplier=1.0)
    with pytest.raises(UserError, match=r"^ngrams: the model has it, llama has none"):
        hf_config(model, n_positions=64)
    with pytest.raises(UserError, match=r"^ngrams: cannot be exported"):
        Widthwise().check(model)
