"""What an hourglass of one block is, what its options do and how it starts. Deeper ones are compared with the papers'
equation in test_decoder.py; what every feed-forward promises is in test_ffn_contract.py.
"""

import pytest
from comparing import CONTEXT, assert_same, norm_site, random, randomised
from thinned import every_pair, in_turn

from widthwise.config_io import UserError, parse
from widthwise.model.axes import RMSNorm
from widthwise.model.ffn.hourglass import HourglassConfig, HourglassTemplate
from widthwise.model.ffn.mlp import MLPConfig
from widthwise.model.ffn.swiglu import SwiGLUConfig

D_MODEL, D_OUT = 21, 13
PLACEMENTS = ("pre", "reordered")
UNGATED = [(MLPConfig(d_ff=9, activation=name), {"gated": False, "activation": name}) for name in ("gelu", "relu2")]


@in_turn(
    (("conventional", "options"), [(SwiGLUConfig(d_ff=9), {}), (SwiGLUConfig(d_ff=9), {}), *UNGATED]),
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


def test_shared_weights_are_there_once_and_every_block_has_a_norm():
    options = HourglassConfig(share_weights=True, n_blocks=3, d_hidden=7)
    module = options.build(D_MODEL, D_MODEL, norm_site("pre", D_MODEL, D_MODEL))
    assert {name for name, _ in module.named_parameters()} == {
        *(f"blocks.0.w_{part}.weight" for part in ("gate", "up", "down")),
        *(f"blocks.{i}.norm.weight" for i in range(3)),
    }


@every_pair(
    ("placement", PLACEMENTS),
    ("norm", (*PLACEMENTS, "shared", "none")),
    (("share_weights", "n_more"), [(False, 4), (True, 0)]),
)
def test_every_norm_divides_by_the_width_it_sees(placement, norm, share_weights, n_more):
    """And by what the layer's norm divides by beyond its own width."""
    options = HourglassConfig(n_blocks=2, d_hidden=7, norm=norm, share_weights=share_weights)
    module = options.build(D_MODEL, D_OUT, norm_site(placement, D_MODEL, D_OUT, n_more=n_more))
    norms = [part for part in module.modules() if isinstance(part, RMSNorm)]
    assert len(norms) == {"shared": 1, "none": 0}.get(norm, 2)
    assert all(part.norm_dim == part.weight.numel() + n_more for part in norms)


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        (HourglassTemplate, {"n_blocks": 0}, "n_blocks: got 0"),
        (HourglassTemplate, {"d_hidden": 0}, "d_hidden: got 0"),
        (HourglassTemplate, {"d_hidden": 5, "ratio": 0.4}, "the width or the rule"),
        (HourglassTemplate, {"norm": "post"}, "norm: got 'post'"),
        (HourglassConfig, {"n_blocks": 2, "d_hidden": [5, 3, 2]}, "got 3 widths for n_blocks = 2"),
        (HourglassConfig, {"n_blocks": 2, "d_hidden": [5, 3], "share_weights": True}, "no matrices in common"),
        (HourglassConfig, {"n_blocks": 2, "d_hidden": [5, 0]}, "d_hidden"),
    ],
)
def test_mistakes_are_named(cls, options, message):
    with pytest.raises(UserError, match=message):
        parse(cls, {"kind": "hourglass", **options})
