"""What an hourglass of one block is, what its options do and how it starts. Deeper ones are compared with the papers'
equation in test_decoder.py; what every feed-forward promises is in test_ffn_contract.py.
"""

import pytest
from comparing import CONTEXT, assert_same, norm_site, random, randomised
from thinned import in_turn

from widthwise.config_io import parse
from widthwise.mistakes import UserError
from widthwise.model.ffn.hourglass import HourglassConfig, HourglassTemplate
from widthwise.model.ffn.mlp import MLPConfig
from widthwise.model.ffn.swiglu import SwiGLUConfig

D_MODEL, D_OUT = 21, 13
PLACEMENTS = ("pre", "reordered", "both")
UNGATED = [(MLPConfig(d_ff=9, activation=name), {"gated": False, "activation": name}) for name in ("gelu", "relu2")]
GATED = MLPConfig(d_ff=9, activation="gelu_tanh", gated=True), {"activation": "gelu_tanh"}


@in_turn(
    (("conventional", "options"), [(SwiGLUConfig(d_ff=9), {}), GATED, *UNGATED]),
    ("placement", PLACEMENTS),
    ("d_out", [D_MODEL, D_OUT]),
)
def test_one_block_is_the_conventional_feed_forward_to_the_bit(conventional, options, placement, d_out):
    site = norm_site(placement, D_MODEL, d_out)
    truth = randomised(conventional.build(D_MODEL, d_out, site).double())
    one = HourglassConfig(n_blocks=1, d_hidden=9, **options).build(D_MODEL, d_out, site).double()
    one.load_state_dict({f"blocks.0.{name}": weight for name, weight in truth.state_dict().items()})
    x, y = (random(2, 5, D_MODEL).requires_grad_() for _ in range(2))
    outputs = [module(each, CONTEXT)[0] for module, each in ((one, x), (truth, y))]
    assert_same(*outputs, (x, *one.parameters()), (y, *truth.parameters()), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        (HourglassTemplate, {"d_hidden": 5, "ratio": 0.4}, "the width or the rule"),
        (HourglassConfig, {"n_blocks": 2, "d_hidden": [5, 3, 2]}, "got 3 widths for n_blocks = 2"),
        (HourglassConfig, {"n_blocks": 2, "d_hidden": [5, 3], "share_weights": True}, "cannot share matrices"),
    ],
)
def test_mistakes_are_named(cls, options, message):
    with pytest.raises(UserError, match=message):
        parse(cls, {"kind": "hourglass", **options})
