"""The larger model that a form of growth asks for: the smallest one that contains the model."""

from typing import Any

import pytest
from boxes import refusal

from widthwise.config_io import parse
from widthwise.growth.choices import NewSizes
from widthwise.growth.correspondence import align
from widthwise.growth.plan import plan_growth
from widthwise.model.config import ModelConfig
from widthwise.recipe.larger import larger_model
from widthwise.shape.template import ModelTemplate

BASE: dict[str, Any] = {"vocab_size": 64, "d_model": 32, "n_layers": 6, "attention": {"head_dim": 8}}
SHAPES = ("x", "diamond", "growing", "narrowing")
UNIFORM: dict[str, dict[str, Any]] = {
    "plain": {},
    "groups": {"attention": {"head_dim": 4, "kv_group_size": 2, "scale": "1/head_dim", "qk_norm": {"eps": 1e-6}}},
    "half attention": {"attention": {"head_dim": 8, "ratio": 0.5, "rope_base": 500.0, "bias": True}},
    "mlp": {"ffn": {"kind": "mlp", "activation": "relu2", "ratio": 3}, "tie_embeddings": True},
    "odd units": {"ffn": {"kind": "swiglu", "d_ff": 37}, "positions": {"n_positions": 16}},
    "reordered": {"norm": {"placement": "reordered", "eps": 1e-6}, "residual": {"multiplier": 0.22}},
    "MTP heads": {"mtp": {"n_depths": 2}, "init": {"std": 0.1}},
    "dynamic": {"ffn": {"kind": "dynamic", "ratio": 4}, "embedding_multiplier": 12.0},
    "experts": {"ffn": {"kind": "moe", "n_experts": 4, "top_k": 2, "ratio": 2}},
    "hourglass": {"ffn": {"kind": "hourglass", "n_blocks": 2, "ratio": 0.5}},
}


def _template(**changes: Any) -> ModelTemplate:
    return parse(ModelTemplate, {**BASE, **changes})


def _model(**changes: Any) -> ModelConfig:
    return _template(**changes).resolve(16)


@pytest.mark.parametrize("kind", SHAPES)
def test_a_shape_is_that_of_the_narrowest_recipe_whose_layers_hold_those_of_the_model(kind: str) -> None:
    found = larger_model(_model(), NewSizes(to_shape=kind))
    widths = [
        _template(d_model=d_model, shape={"kind": kind}).resolve(16).widths
        for d_model in range(32, found.d_model + 8, 8)  # heads of 8
    ]
    assert found.widths == widths[-1]
    assert [min(each) >= 32 for each in widths] == [*[False] * (len(widths) - 1), True]


@pytest.mark.parametrize("name", UNIFORM)
def test_any_uniform_model_follows_a_rule_and_grows_into_a_shape(name: str) -> None:
    model = _model(**UNIFORM[name])
    larger = larger_model(model, NewSizes(to_shape="x", turn_layer=0.25, turn_width=0.7, add_layers=2))
    assert (larger.n_layers, min(larger.widths)) == (8, model.d_model)
    assert larger.widths[1] == model.d_model < larger.d_model
    plan = plan_growth(model, larger, align(model, larger))
    assert plan.new.cost().params > model.cost().params
    for layer in plan.new.layers:
        ratio = layer.d_model / model.d_model
        assert layer.attention.head_dim == model.layers[0].attention.head_dim
        assert layer.attention.n_heads == ratio * model.layers[0].attention.n_heads
        assert layer.ffn.hidden_widths == tuple(round(ratio * each) for each in model.layers[0].ffn.hidden_widths)


def test_a_feed_forward_becomes_the_first_block_of_an_hourglass_of_the_usual_size() -> None:
    """At 0.4 of the width, in four blocks, as `ffn: {kind: hourglass}` has it."""
    model = _model(ffn={"kind": "swiglu", "d_ff": 50})
    larger = larger_model(model, NewSizes(ffn="hourglass"))
    assert {layer.ffn.hidden_widths for layer in larger.layers} == {(50, 13, 13, 13)}
    plan_growth(model, larger, align(model, larger))


def test_a_virtual_width_is_that_of_a_recipe_and_keeps_the_factor_of_updates() -> None:
    residual = {"multiplier": 0.22}
    larger = larger_model(_model(residual=residual), NewSizes(virtual_width=1.5))
    assert larger == _model(residual={"kind": "virtual", "width": 1.5, **residual})


def test_what_a_model_cannot_become_is_refused() -> None:
    for changes, sizes, message in (
        ({}, {"turn_width": 0.4}, "--turn-width: got 0.4; needs --to-shape"),
        ({}, {"to_shape": "growing", "turn_layer": 0.4}, "--turn-layer: got 0.4; shape kind 'growing' has none"),
        ({}, {"to_shape": "x", "turn_width": 1.4}, "--to-shape: shape.bottleneck_width: got 1.4"),
        ({"shape": {"kind": "x"}}, {"to_shape": "x"}, "--to-shape: needs a uniform model"),
        ({"layers": {2: {"ffn": {"d_ff": 9}}}}, {"to_shape": "x"}, "(its layers.2.ffn.d_ff does not follow a rule)"),
        ({"residual": {"kind": "virtual", "width": 2.0}}, {"to_shape": "x"}, "--to-shape: needs a uniform model"),
        (UNIFORM["experts"], {"ffn": "hourglass"}, "layers.0.ffn: is a moe; --ffn hourglass needs"),
        ({"n_layers": 2}, {"to_shape": "x"}, "--to-shape: got x for n_layers = 2; add --add-layers 1"),
        ({"n_layers": 1}, {"to_shape": "x", "add_layers": 1}, "n_layers = 2; add --add-layers 2"),
        ({}, {"d_model": 24}, "d_model: got 24, and the model has 32; grow only enlarges: use `widthwise shrink`"),
        ({"ffn": {"kind": "swiglu", "d_ff": 50}}, {"d_ff": 49}, "d_ff: got 49, and the model has 50; grow only"),
        ({}, {"n_heads": 3}, "n_heads: got 3, and the model has 4; grow only enlarges"),
        ({}, {"head_dim": 6}, "head_dim: got 6, and the model has 8; grow only enlarges"),
        ({}, {"virtual_width": 1.45}, "--virtual-width.width: got 1.45; must be a fraction"),
        ({}, {"to_shape": "x", "virtual_width": 2.0}, "--virtual-width: conflicts with --to-shape"),
    ):
        assert message in refusal(larger_model, _model(**changes), NewSizes(**sizes))
