"""Heads and hidden units by depth: profiles of the literature, at exactly the cost of the uniform model."""

from pathlib import Path

import numpy as np
import pytest
from thinned import in_turn

from widthwise.config_io import parse
from widthwise.experiments.sweep import read_sweep
from widthwise.mistakes import UserError
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import parameter_shapes
from widthwise.shape.profile import shares
from widthwise.shape.template import ModelTemplate

GROUPED = {"head_dim": 2, "kv_group_size": 2, "bias": True, "qk_norm": {"over": "all_heads"}}
FFNS = [
    {"kind": "swiglu", "ratio": 2.6},
    {"kind": "mlp", "d_ff": 90, "activation": "relu2"},
    {"kind": "hourglass", "n_blocks": 3, "ratio": 0.5, "multiple_of": 3},
    {"kind": "moe", "n_experts": 4, "top_k": 2, "ratio": 0.5, "n_shared_experts": 1},
    {"kind": "dynamic", "ratio": 1.5},
]


def resolved(shape: dict, **changes) -> ModelConfig:
    data = {"vocab_size": 61, "d_model": 36, "n_layers": 5, "attention": GROUPED, "shape": shape, **changes}
    return parse(ModelTemplate, data, "model").resolve(13)


@pytest.mark.parametrize(
    ("points", "is_framed", "expected"),
    [
        ((0.5, 1.0), False, [2 / 3, 5 / 6, 1, 7 / 6, 4 / 3]),  # OpenELM
        ((1.0, 0.5), False, [4 / 3, 7 / 6, 1, 5 / 6, 2 / 3]),  # reverse
        ((1.0, 2.0, 1.0), False, [5 / 7, 15 / 14, 10 / 7, 15 / 14, 5 / 7]),  # crown
        ((1.0, 3.0), True, [1, 0.5, 1, 1.5, 1]),  # framed
    ],
)
def test_profiles_of_the_literature(points, is_framed, expected):
    np.testing.assert_allclose(shares(points, 5, is_framed), expected, rtol=1e-13)


def test_heads_and_hidden_units_move_and_heads_keep_their_size():
    config = resolved({"kind": "profile", "heads": [1, 2, 1], "hidden": [3, 1]}, ffn={"kind": "swiglu", "d_ff": 50})
    attention = [layer.attention for layer in config.layers]
    assert [each.n_heads for each in attention] == [12, 20, 26, 20, 12]
    assert {(each.n_heads // each.n_kv_heads, each.head_dim) for each in attention} == {(2, 2)}
    assert [layer.ffn.hidden_widths for layer in config.layers] == [(75,), (63,), (50,), (37,), (25,)]
    assert set(config.widths) == {36}


@in_turn(
    ("ffn", FFNS),
    ("attention", [GROUPED, {"n_heads": 6, "ratio": 2.0}]),
)
def test_a_profile_costs_exactly_what_its_uniform_model_costs(ffn, attention):
    shape = {"kind": "profile", "heads": [1, 2], "hidden": [1, 2, 1]}
    uniform = resolved({"kind": "uniform"}, ffn=ffn, attention=attention)
    config = resolved(shape, ffn=ffn, attention=attention)
    assert config.layers != uniform.layers
    for causal in (False, True):
        assert config.cost().forward_flops(13, causal) == pytest.approx(uniform.cost().forward_flops(13, causal))
    assert config.cost().kv_bytes(64) == uniform.cost().kv_bytes(64)
    assert config.cost().params == uniform.cost().params
    assert config.cost().params == sum(shape.numel() for shape in parameter_shapes(config).values())


def test_framed_ends_are_those_of_the_uniform_model():
    framed = resolved({"kind": "profile", "hidden": [1, 3], "framed": True}, n_layers=7)
    uniform = resolved({"kind": "uniform"}, n_layers=7)
    assert [framed.layers[i] == uniform.layers[i] for i in range(7)] == [True, *[False] * 2, True, *[False] * 2, True]


@pytest.mark.parametrize(
    ("shape", "changes", "message"),
    [
        ({}, {}, "shape: heads: missing; a profile needs heads, hidden or both"),
        ({"heads": [0.01, 1]}, {}, "model.shape.heads: leaves nothing for layer 1 of 5, which would get 0.18 "),
        ({"hidden": [1, 2], "framed": True}, {"n_layers": 2}, "model.n_layers: 2 is too few for a profile"),
        ({"heads": [1, 2]}, {"d_model": 34}, "model.d_model: got 34; attention needs a multiple of 4"),
    ],
)
def test_profiles_that_cannot_be_had_are_refused(shape, changes, message):
    with pytest.raises(UserError) as caught:
        resolved({"kind": "profile", **shape}, **changes)
    assert message in str(caught.value)
    assert str(caught.value).count("model.") == ("model." in message)
    assert len(str(caught.value).splitlines()) == 1


def test_the_rivals_of_the_x_shape_have_its_parameters():
    plan = read_sweep(Path("sweep_profiles"))
    costs = {name: point.recipe.explicit_model.cost().params for name, point in plan.points.items()}
    profiles = {name for name in costs if not name.startswith(("uniform", "x"))}
    assert len(profiles) >= 9
    assert {costs[name] for name in profiles} == {costs["uniform"]}
    assert costs["x"] == pytest.approx(costs["uniform"], rel=0.002)
