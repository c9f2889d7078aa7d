"""Totals of many sizes are those of the built models."""

from math import lcm

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from measured import counted_flops, on_meta, parameters_by_part
from thinned import in_turn

from widthwise.config_io import parse
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder
from widthwise.shape.search import candidate_template
from widthwise.shape.search_space import Sizes, UniformTotals, totals
from widthwise.shape.template import ModelTemplate

T = 13


def measured(config: ModelConfig) -> dict[str, int]:
    """What torch says about the built model, as the totals name it."""
    model, tokens = on_meta(lambda: Decoder(config)), torch.zeros(1, T, dtype=torch.long, device="meta")
    parts = parameters_by_part(model)
    return {
        "params": sum(parts.values()),
        "layer_params": parts["attention"] + parts["ffn"] + parts["residual"],
        "attention_params": parts["attention"],
        "flops": counted_flops(lambda: model(tokens)) // T,
    }


ATTENTION = [
    {"n_heads": 3, "bias": True},
    {"n_heads": 1, "ratio": 2.0, "rope_base": None},
    {"n_heads": 4, "kv_group_size": 2, "d_attention": 48, "out_bias": True},
    {"head_dim": 6, "ratio": 0.75, "qk_norm": {"over": "head"}},
    {"head_dim": 8, "kv_group_size": 2, "qk_norm": {"over": "all_heads"}},
]
SLOTS = {"kind": "hyper_connections", "n_fractions": 2}
RESIDUALS = [
    {"kind": "plain"},
    {"kind": "plain", "resize": "projection"},
    SLOTS,
    {**SLOTS, "n_slots": 4, "embedding": "expand", "reduce": "slot"},
    {"kind": "hyper_connections", "n_fractions": 3, "n_slots": 6, "embedding": "slot", "dynamic": False},
]
OTHERS = [
    {"tie_embeddings": True},
    {"norm": {"placement": "reordered"}, "mtp": {"n_depths": 2}},
    {"ffn": {"kind": "hourglass"}},
]


sizes_of_a_model = st.tuples(*(st.integers(1, most) for most in (4, 4, 9, 90, 7)))


@in_turn(("attention", ATTENTION), ("residual", RESIDUALS), ("others", OTHERS))
@settings(deadline=None, max_examples=4)
@given(drawn=sizes_of_a_model)
def test_totals_of_many_are_those_of_the_built_model(attention, residual, others, drawn) -> None:
    data = {"vocab_size": 61, "d_model": 48, "n_layers": 1, "attention": attention, "residual": residual, **others}
    base = parse(ModelTemplate, data, "model")
    n_blocks, n_layers, n_quanta, d_hidden, n_units = drawn
    quantum = lcm(base.attention.quantum, base.residual.d_model_quantum)
    sizes = Sizes(n_blocks, n_layers, n_quanta * quantum, d_hidden, n_units * base.attention.unit)

    def build(sizes: Sizes) -> ModelConfig:
        return candidate_template(base, base.attention, sizes).resolve(T)

    count = UniformTotals(build, quantum, base.attention.unit, T)
    config = build(sizes)
    from_torch = measured(config)
    assert {name: count(name, sizes) for name in from_torch} == from_torch
    for name, value in totals(config, T).items():
        assert count(name, sizes) == pytest.approx(value, rel=1e-12), name
