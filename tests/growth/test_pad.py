"""Padding to multiples adds zeros that never learn, and leaves the function."""

import pytest
import torch
from applied_plans import weights_of
from boxes import refusal
from model_cases import config, decoder, random_tokens, variant

from widthwise.growth.certificate import certify
from widthwise.growth.choices import Multiples
from widthwise.growth.pad import PADDING, pad_plan, padded
from widthwise.model.decoder import build

CASES = {
    "all": (
        variant("uniform", "gqa"),
        Multiples(d_ff_multiple=8, head_dim_multiple=6, heads_multiple=4, d_model_multiple=16),
    ),
    "shape": (config("x"), Multiples(d_ff_multiple=16, d_model_multiple=16)),
    "hourglass": (variant("x", "hourglass"), Multiples(d_ff_multiple=8)),
    "moe": (
        config("uniform", ffn={"kind": "moe", "n_experts": 3, "top_k": 2, "d_expert": 5}),
        Multiples(d_ff_multiple=8),
    ),
    "dynamic": (variant("uniform", "dynamic"), Multiples(d_ff_multiple=16)),
    "heads_behind_a_norm": (variant("uniform", "qk_norm"), Multiples(heads_multiple=4)),
    "other_values": (variant("uniform", "values_of_other_sizes"), Multiples(head_dim_multiple=8)),
    "layer_norms": (variant("uniform", "gpt2"), Multiples(d_ff_multiple=16, head_dim_multiple=16, heads_multiple=3)),
    "slots": (variant("x", "slots"), Multiples(d_ff_multiple=16, head_dim_multiple=4)),
}


@pytest.mark.parametrize("name", CASES)
def test_padding_computes_the_same_and_is_zero(name):
    old, multiples = CASES[name]
    plan = pad_plan(old, multiples)
    model = decoder(old)
    new = dict(plan.weights(weights_of(model), fresh=PADDING))
    is_new = plan.is_new()
    assert sum(int(found.sum()) for found in is_new.values()) > 0
    assert all((new[name][found] == 0).all() for name, found in is_new.items())
    larger = build(plan.new, 0, dtype=torch.float64)
    larger.set_weights(new.items())
    tokens = random_tokens(2, 11)
    torch.testing.assert_close(larger(tokens), model(tokens), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["moe", "layer_norms"])
def test_padding_does_not_learn(name):
    old, multiples = CASES[name]
    plan = pad_plan(old, multiples)
    weights = weights_of(decoder(old, dtype=torch.float32))
    new = dict(plan.weights(weights, fresh=PADDING))
    found = certify(plan, weights, new, seq_len=13, lr=1e-3, fresh=PADDING)
    assert found.is_preserved
    assert found.is_padding
    assert found.total("n_alive") == 0
    assert any("all 0: padding" in line for line in found.lines())


def test_sizes_become_the_next_multiples():
    old = config("x", ffn={"kind": "hourglass", "n_blocks": 2, "d_hidden": 5})
    new = padded(old, Multiples(d_ff_multiple=4, head_dim_multiple=4, d_model_multiple=16))
    assert new.widths == [48, 32, 16, 16, 32]
    assert new.d_model == new.final_norm_width == 32
    for before, after in zip(old.layers, new.layers):
        assert after.ffn.hidden_widths == (8, 8)
        assert after.attention.head_dim == -(-before.attention.head_dim // 4) * 4
        assert after.attention.scale == before.attention.scale


def test_so_many_devices_share_heads_evenly():
    old = config("uniform", attention={"n_heads": None, "head_dim": 4}, d_model=20)
    layer = old.layers[0]
    for heads, multiple, expected in [
        ((10, 5), 4, (16, 8)), ((10, 5), 10, (10, 5)), ((6, 1), 4, (12, 2)), ((6, 3), 8, (8, 4)),
        ((12, 12), 5, (15, 15)),
    ]:  # fmt: skip
        attention = layer.attention.model_copy(update={"n_heads": heads[0], "n_kv_heads": heads[1]})
        one = old.model_copy(update={"layers": (layer.model_copy(update={"attention": attention}),)})
        found = padded(one, Multiples(heads_multiple=multiple)).layers[0].attention
        assert (found.n_heads, found.n_kv_heads) == expected


def test_what_cannot_be_padded_is_refused():
    for name, multiples, message in [
        ("qk_norm", Multiples(head_dim_multiple=16), "head_dim: cannot be padded behind a norm of queries and keys"),
        ("qk_norm_all_heads", Multiples(heads_multiple=16), "n_heads: cannot be padded behind a norm over all heads"),
        ("gpt2", Multiples(d_model_multiple=16), "d_model: cannot be padded under layer norms"),
        ("plain", Multiples(head_dim_multiple=11), "is odd, which rotary heads cannot be"),
    ]:
        assert message in refusal(pad_plan, variant("uniform", name), multiples)
