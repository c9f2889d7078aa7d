"""The feed-forward without a gate; what every feed-forward promises is in test_ffn_contract.py."""

import pytest
from comparing import assert_same, context, random, randomised
from literal_decoder import mlp
from model_cases import config
from thinned import in_turn

from widthwise.model.decoder import build
from widthwise.model.ffn.mlp import MLPConfig
from widthwise.model.ffn.mlp_module import ACTIVATIONS
from widthwise.model.norm import NormConfig, NormSite


@in_turn(
    ("bias", [False, True]),
    ("activation", ACTIVATIONS),
)
def test_values_and_gradients_are_the_formula(activation, bias):
    without_norm = NormSite("none", NormConfig(norm_dim=9))
    module = randomised(MLPConfig(d_ff=11, activation=activation, bias=bias).build(9, 7, without_norm).double())
    x = random(2, 5, 9).requires_grad_()
    inputs = (x, *module.parameters())
    assert len(inputs) == (5 if bias else 3)
    assert_same(module(x, context())[0], mlp(module, x), inputs, rtol=1e-11, atol=1e-12)


def test_biases_start_at_zero_and_matrices_as_those_of_any_feed_forward():
    recipe = {"ffn": {"kind": "mlp", "d_ff": 400, "bias": True}, "init": {"std": 0.3, "depth_scaled": True}}
    model = build(config("uniform", **recipe), seed=1)
    for layer in model.layers:
        assert all((w.bias.weight == 0).all() for w in (layer.ffn.w_up, layer.ffn.w_down))
        for w, std in ((layer.ffn.w_up, 0.3), (layer.ffn.w_down, 0.3 / 10**0.5)):  # 5 layers of 2 updates
            assert w.weight.std().item() == pytest.approx(std, rel=0.05)
