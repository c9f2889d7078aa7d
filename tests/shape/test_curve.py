"""Widths, heads, hidden units and blocks along curves, at the cost of the uniform model."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from widthwise.config_io import parse
from widthwise.mistakes import UserError
from widthwise.model.config import ModelConfig
from widthwise.model.cost import Cost
from widthwise.records.shrinking import Curve
from widthwise.shape.template import QUANTITIES, ModelTemplate

ROOT = Path(__file__).parents[2]
SEQ_LEN = 29
BASE = {
    "vocab_size": 61,
    "d_model": 60,
    "n_layers": 7,
    "attention": {"head_dim": 6},
    "ffn": {"kind": "swiglu", "ratio": 3},
}
POINTS = st.lists(st.floats(0.3, 3), min_size=2, max_size=8)


def resolved(shape: dict | None = None, **changes) -> ModelConfig:
    return parse(ModelTemplate, BASE | changes | ({"shape": shape} if shape else {}), "model").resolve(SEQ_LEN)


def curve(**options) -> dict:
    return {"kind": "curve", "rounding": "balanced"} | options


def of_layers(config: ModelConfig, match: str) -> float:
    cost = sum((costs["attention"] + costs["ffn"] for costs in config.layer_costs()), Cost())
    return float(QUANTITIES[match](cost, SEQ_LEN))


@pytest.mark.parametrize("match", ["params", "flops_causal", "kv_bytes"])
@settings(max_examples=8, deadline=None)
@given(widths=POINTS)
def test_a_curve_costs_what_its_uniform_model_costs(match, widths):
    config = resolved(curve(widths=widths, match=match, quantum=6))
    # One quantum of one layer is the most that rounding may leave.
    quantum = of_layers(resolved(n_layers=1), match) * 6 / 60 * 2 * max(config.widths) / 60
    assert of_layers(config, match) == pytest.approx(of_layers(resolved(), match), abs=quantum)


@settings(max_examples=8, deadline=None)
@given(widths=POINTS, factor=st.sampled_from([0.125, 0.5, 4.0, 64.0]))
def test_only_proportions_count(widths, factor):
    # Powers of two, which change no digit.
    assert resolved(curve(widths=widths)) == resolved(curve(widths=[factor * width for width in widths]))


def test_points_divide_the_depth_evenly_at_any_depth():
    fine = {"head_dim": 2}
    for n_layers in (5, 9, 17):
        widths = np.array(resolved(curve(widths=[1, 3, 1]), n_layers=n_layers, attention=fine).widths)
        expected = np.interp(np.linspace(0, 2, n_layers), [0, 1, 2], [1, 3, 1])
        np.testing.assert_allclose(widths / widths.max(), expected / 3, atol=2 * 2 / widths.max())


def test_the_found_shape_is_the_mean_of_the_searches_on_record():
    mean = json.loads((ROOT / "benchmarks/results/searches_averaged/consensus.json").read_text())["curve"]
    found = resolved({"kind": "found"}, n_layers=11)
    assert found == resolved(Curve.model_validate(mean).section("params"), n_layers=11)
    assert found != resolved({"kind": "found", "attention": None}, n_layers=11)


def test_attention_and_hidden_widths_have_curves_of_their_own():
    config = resolved(curve(widths=[1, 1], attention=[0.5, 1.5], hidden=[3, 1], quantum=1, rounding="nearest"))
    width = config.widths[0]
    assert set(config.widths) == {width}
    factors = np.linspace(0.5, 1.5, 7)
    assert [layer.attention.n_heads for layer in config.layers] == [round(f * width / 6) for f in factors]
    assert {layer.attention.head_dim for layer in config.layers} == {6}
    hidden = [layer.ffn.hidden_widths[0] for layer in config.layers]
    assert hidden == [round(3 * f * width) for f in np.linspace(3, 1, 7)]
    assert config.cost().params == pytest.approx(resolved().cost().params, rel=0.01)


def test_widths_need_whole_heads_unless_attention_has_a_curve_of_its_own():
    with pytest.raises(UserError, match="quantum: got 4; must be a multiple of 6"):
        resolved(curve(widths=[1, 2], quantum=4))
    assert all(width % 4 == 0 for width in resolved(curve(widths=[1, 2], quantum=4, attention=[1, 1])).widths)


HOURGLASS = {"kind": "hourglass", "ratio": 0.5, "n_blocks": 3}


def test_blocks_are_whole_and_at_least_one():
    config = resolved(curve(widths=[1, 1], blocks=[0.1, 2]), ffn=HOURGLASS)
    factors = np.linspace(0.1, 2, 7)
    assert [len(layer.ffn.hidden_widths) for layer in config.layers] == [max(1, round(3 * f)) for f in factors]
    # Each block is as wide as the rule makes it: the curve says how many there are.
    assert {width / layer.d_model for layer in config.layers for width in layer.ffn.hidden_widths} == {0.5}
    assert config.cost().params == pytest.approx(resolved(ffn=HOURGLASS).cost().params, rel=0.01)


@pytest.mark.parametrize(("n_layers", "depth", "n_uniform"), [(7, 1.4, 5), (7, 0.5, 14), (12, 1.3333, 9), (3, 30, 1)])
def test_a_deeper_curve_costs_what_fewer_layers_of_the_uniform_model_cost(n_layers, depth, n_uniform):
    shape = curve(widths=[1, 1.2], depth=depth, quantum=1, attention=[1, 1])
    fine = {"head_dim": 2}
    config = resolved(shape, n_layers=n_layers, attention=fine)
    uniform = resolved(n_layers=n_uniform, attention=fine)
    assert config.n_layers == n_layers
    assert of_layers(config, "params") == pytest.approx(of_layers(uniform, "params"), rel=0.01)
    template = parse(ModelTemplate, BASE | {"shape": shape, "n_layers": n_layers, "attention": fine}, "model")
    assert template.uniform().resolve(SEQ_LEN) == uniform
