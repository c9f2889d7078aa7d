"""The feed-forward in plain torch; what every feed-forward promises is in test_ffn_contract.py."""

from comparing import CONTEXT, assert_same, random, randomised
from literal_decoder import mlp
from thinned import in_turn

from widthwise.model.ffn.mlp import MLPConfig
from widthwise.model.ffn.mlp_module import ACTIVATIONS
from widthwise.model.norm import NormConfig, NormSite


@in_turn(
    ("bias", [False, True]),
    ("activation", ACTIVATIONS),
    ("gated", [False, True]),
)
def test_values_and_gradients_are_the_formula(activation, bias, gated):
    without_norm = NormSite("none", NormConfig(norm_dim=9))
    config = MLPConfig(d_ff=11, activation=activation, gated=gated, bias=bias)
    module = randomised(config.build(9, 7, without_norm).double())
    x = random(2, 5, 9).requires_grad_()
    inputs = (x, *module.parameters())
    assert len(inputs) == 1 + (3 if gated else 2) * (2 if bias else 1)
    assert_same(module(x, CONTEXT)[0], mlp(module, x), inputs, rtol=1e-11, atol=1e-12)
