"""Widths, heads and hidden units along curves and profiles, at the cost of the uniform model."""

import json
from pathlib import Path

import numpy as np
import pytest
from boxes import refusal
from hypothesis import given, settings
from hypothesis import strategies as st
from thinned import in_turn

from widthwise.config_io import parse
from widthwise.experiments.sweep import read_sweep
from widthwise.model.config import ModelConfig
from widthwise.model.cost import Cost
from widthwise.model.decoder import parameter_shapes
from widthwise.records.resizing import Curve
from widthwise.shape.template import QUANTITIES, ModelTemplate

ROOT = Path(__file__).parents[2]
SEQ_LEN = 29
SIZES = {"vocab_size": 61, "d_model": 60, "n_layers": 7}
BASE = {**SIZES, "attention": {"head_dim": 6}, "ffn": {"kind": "swiglu", "ratio": 3}}
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
    message = "model.shape.quantum: got 4; must be a multiple of 6"
    assert refusal(resolved, curve(widths=[1, 2], quantum=4)).startswith(message)
    assert all(width % 4 == 0 for width in resolved(curve(widths=[1, 2], quantum=4, attention=[1, 1])).widths)


@pytest.mark.parametrize(("n_layers", "depth", "n_uniform"), [(7, 1.4, 5), (7, 0.5, 14), (12, 1.3333, 9), (3, 30, 1)])
def test_a_deeper_curve_costs_what_fewer_layers_of_the_uniform_model_cost(n_layers, depth, n_uniform):
    shape = curve(widths=[1, 1.2], depth=depth, quantum=1, attention=[1, 1])
    fine = {"head_dim": 2}
    template = parse(ModelTemplate, BASE | {"shape": shape, "n_layers": n_layers, "attention": fine}, "model")
    config, uniform = template.resolve(SEQ_LEN), resolved(n_layers=n_uniform, attention=fine)
    assert config.n_layers == n_layers
    assert template.uniform().resolve(SEQ_LEN) == uniform
    assert of_layers(config, "params") == pytest.approx(of_layers(uniform, "params"), rel=0.01)


GROUPED = {"head_dim": 2, "kv_group_size": 2, "bias": True, "qk_norm": {"over": "all_heads"}}
FFNS = [
    {"kind": "swiglu", "ratio": 2.6},
    {"kind": "mlp", "d_ff": 90, "activation": "relu2"},
    {"kind": "hourglass", "n_blocks": 3, "ratio": 0.5, "multiple_of": 3},
    {"kind": "moe", "n_experts": 4, "top_k": 2, "ratio": 0.5, "n_shared_experts": 1},
    {"kind": "dynamic", "ratio": 1.5},
]


def profiled(shape: dict, **changes) -> ModelConfig:
    data = {"vocab_size": 61, "d_model": 36, "n_layers": 5, "attention": GROUPED, "shape": shape, **changes}
    return parse(ModelTemplate, data, "model").resolve(13)


def test_heads_and_hidden_units_move_and_heads_keep_their_size():
    config = profiled({"kind": "profile", "heads": [1, 2, 1], "hidden": [3, 1]}, ffn={"kind": "swiglu", "d_ff": 50})
    attention = [layer.attention for layer in config.layers]
    assert [each.n_heads for each in attention] == [12, 20, 26, 20, 12]
    assert {(each.n_heads // each.n_kv_heads, each.head_dim) for each in attention} == {(2, 2)}
    assert [layer.ffn.hidden_widths for layer in config.layers] == [(75,), (63,), (50,), (37,), (25,)]
    assert set(config.widths) == {36}
    framed = profiled({"kind": "profile", "hidden": [1, 3], "framed": True}, ffn={"kind": "swiglu", "d_ff": 50})
    assert [layer.ffn.hidden_widths for layer in framed.layers] == [(50,), (25,), (50,), (75,), (50,)]


@in_turn(("ffn", FFNS), ("attention", [GROUPED, {"n_heads": 6, "ratio": 2.0}]))
def test_a_profile_costs_exactly_what_its_uniform_model_costs(ffn, attention):
    shape = {"kind": "profile", "heads": [1, 2], "hidden": [1, 2, 1]}
    uniform = profiled({"kind": "uniform"}, ffn=ffn, attention=attention)
    config = profiled(shape, ffn=ffn, attention=attention)
    assert config.layers != uniform.layers
    for causal in (False, True):
        assert config.cost().forward_flops(13, causal) == pytest.approx(uniform.cost().forward_flops(13, causal))
    assert config.cost().kv_bytes(64) == uniform.cost().kv_bytes(64)
    assert config.cost().params == uniform.cost().params
    assert config.cost().params == sum(shape.numel() for shape in parameter_shapes(config).values())


def test_profiles_that_cannot_be_had_are_refused():
    for shape, changes, message in [
        ({}, {}, "model: shape: heads: missing; a profile needs heads, hidden or both"),
        ({"heads": [0.01, 1]}, {}, "model.shape.heads: leaves nothing for layer 1 of 5, which would get 0.18 "),
        ({"hidden": [1, 2], "framed": True}, {"n_layers": 2}, "model.n_layers: 2 is too few for a profile"),
        ({"heads": [1, 2]}, {"d_model": 34}, "model.d_model: got 34; attention needs a multiple of 4"),
    ]:
        assert refusal(profiled, {"kind": "profile", **shape}, **changes).startswith(message)


def test_the_rivals_of_the_x_shape_have_its_parameters():
    plan = read_sweep(Path("sweep_profiles"))
    costs = {name: point.recipe.explicit_model.cost().params for name, point in plan.points.items()}
    profiles = {name for name in costs if not name.startswith(("uniform", "x"))}
    assert len(profiles) >= 9
    assert {costs[name] for name in profiles} == {costs["uniform"]}
    assert costs["x"] == pytest.approx(costs["uniform"], rel=0.002)
