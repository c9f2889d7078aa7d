"""Totals of many sizes are those of the built models."""

from math import lcm

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from measured import counted_flops, on_meta, parameters_by_part

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


PLAIN = st.fixed_dictionaries({"kind": st.just("plain"), "resize": st.sampled_from(["carry", "projection"])})
SLOTS = st.fixed_dictionaries(
    {
        "kind": st.just("hyper_connections"),
        "embedding": st.sampled_from(["direct", "expand", "slot"]),
        "reduce": st.sampled_from(["full", "slot"]),
        "dynamic": st.booleans(),
    },
    optional={"n_fractions": st.sampled_from([2, 3]), "n_slots": st.sampled_from([4, 6])},
)


@st.composite
def bases(draw) -> ModelTemplate:
    by_number = draw(st.booleans())
    n = draw(st.integers(1, 4))
    group = 2 if n % 2 == 0 else 1
    heads = {"n_heads": n} if by_number else {"head_dim": 2 * n}
    data = {
        "vocab_size": draw(st.integers(3, 70)),
        "d_model": 8 * n * group,
        "n_layers": 1,
        "attention": {
            **heads,
            **draw(st.sampled_from([{}, {}, {"ratio": 2.0}, {"ratio": 0.75}, {"d_attention": 12 * n * group}])),
            "kv_group_size": group,
            "bias": draw(st.booleans()),
            "out_bias": draw(st.booleans()),
            "rope_base": draw(st.sampled_from([10000.0, None])),
            "qk_norm": draw(st.sampled_from([None, {"over": "head"}, {"over": "all_heads"}])),
        },
        "ffn": {"kind": draw(st.sampled_from(["swiglu", "hourglass"]))},
        "norm": {"placement": draw(st.sampled_from(["pre", "reordered"]))},
        "residual": draw(st.one_of(PLAIN, SLOTS)),
        "mtp": draw(st.sampled_from([None, {"n_depths": 2}])),
    }
    if data["residual"].get("embedding") != "direct":
        data["tie_embeddings"] = draw(st.booleans())
    return parse(ModelTemplate, data, "model")


sizes_of_a_model = st.tuples(*(st.integers(1, most) for most in (4, 4, 9, 90, 7)))


@settings(deadline=None, max_examples=15)
@given(bases(), sizes_of_a_model)
def test_totals_of_many_are_those_of_the_built_model(base, drawn) -> None:
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
