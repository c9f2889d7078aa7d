"""Attention alone: what it costs, and what its options refuse. Models are in test_decoder.py."""

from itertools import cycle, product

import pytest
import torch
from comparing import randomised
from measured import counted_flops, kept_per_token, on_meta

from widthwise.config_io import parse
from widthwise.kernels.rotary import rope_table
from widthwise.mistakes import UserError
from widthwise.model.attention import AttentionConfig, AttentionTemplate, QKNormConfig
from widthwise.model.attention_module import Attention
from widthwise.model.context import PassContext
from widthwise.model.norm import NormConfig, NormSite

SITE = NormSite("none", NormConfig(norm_dim=7))
SIZES = [(6, 6), (6, 3), (6, 9), (2, 8), (5, 2)]
"""Size of the heads of queries and keys, and of those of values."""

NORMS = cycle([None, QKNormConfig(), QKNormConfig(over="all_heads", q_norm_dim=3)])
CONFIGS = [
    AttentionConfig(
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        v_head_dim=None if v_head_dim == head_dim else v_head_dim,
        scale=0.6,
        rope_base=rope_base,
        bias=v_head_dim != 3,
        out_bias=n_heads != 4,
        qk_norm=qk_norm,
    )
    for ((head_dim, v_head_dim), rope_base), (n_heads, n_kv_heads), qk_norm in zip(
        product(SIZES, (50.0, None)), cycle([(4, 2), (3, 3), (6, 1), (4, 2)]), NORMS
    )
    if rope_base is None or head_dim % 2 == 0
]


def context(resolved, length, device="cpu"):
    places = torch.arange(length, device=device)[None]
    tables = {} if resolved.rope is None else {resolved.rope: rope_table(places, resolved.rope)}
    return PassContext(tables, masks={None: None})


@pytest.mark.parametrize("resolved", CONFIGS, ids=str)
def test_cost_equals_sizes_flops_and_what_autograd_keeps(resolved):
    d_model, d_in, n = 11, 7, 9
    cost = resolved.cost(d_model, d_in)
    module = on_meta(lambda: Attention(resolved, d_model, d_in, SITE))
    inside = [p.numel() for name, p in module.named_parameters() if "norm" not in name]
    assert cost.params == cost.active_params == sum(inside)
    x = torch.zeros(1, n, d_in, device="meta")
    assert cost.forward_flops(n) * n == counted_flops(lambda: module(x, context(resolved, n, "meta")))

    module = randomised(Attention(resolved, d_model, d_in, SITE))

    def run(batch: int):
        return module(torch.ones(batch, n, d_in, requires_grad=True), context(resolved, n))

    whole = cost + resolved.norm_cost(d_model, d_in, SITE)
    assert kept_per_token(run, n) == whole.activation_bytes(bytes_per_element=4)


SMALL = {"n_heads": 2, "n_kv_heads": 1, "head_dim": 6, "scale": 1.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 3}, "head_dim: got 3; rotary positions rotate pairs, so it must be even"),
        ({"rope_frequencies": [1.0, 0.1]}, "rope_frequencies: got 2 numbers; must be head_dim / 2 = 3"),
        ({"rope_frequencies": [1.0, 0.1, 0.2], "rope_base": None}, "rope_frequencies: conflicts with rope_base: null"),
        ({"n_heads": 3, "n_kv_heads": 2}, "n_kv_heads: got 2; must divide n_heads = 3"),
    ],
)
def test_mistakes_are_named_in_one_line(changes, message):
    with pytest.raises(UserError) as caught:
        parse(AttentionConfig, SMALL | changes, "attention")
    assert f"attention.{message}" in str(caught.value).replace("attention: ", "attention.")
    assert len(str(caught.value).splitlines()) == 1


def test_a_template_costs_what_it_becomes():
    for options in ({}, {"bias": True}, {"bias": True, "out_bias": True, "rope_base": None}):
        for of_heads in ({"n_heads": 4}, {"head_dim": 6, "kv_group_size": 2}):
            template = parse(AttentionTemplate, of_heads | options, "attention")
            assert template.cost(24, 20) == template.at_width(24).cost(24, 20)
