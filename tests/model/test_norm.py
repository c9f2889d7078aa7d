"""Values and gradients of norms. Their costs are in test_cost.py."""

import pytest
import torch
from comparing import assert_same, random
from literal_decoder import normalised

from widthwise.model.norm import PLACEMENTS, NormConfig, NormSite

WIDTH = 13
KINDS = [
    {"kind": "rms", "norm_dim": WIDTH},
    {"kind": "rms", "norm_dim": 7},
    {"kind": "rms", "norm_dim": 5, "stat_width": 5},
    {"kind": "layer", "norm_dim": WIDTH},
    {"kind": "layer", "norm_dim": 7},
    {"kind": "rms", "norm_dim": 7, "gain_offset": 1.0},
    {"kind": "layer", "norm_dim": 5, "gain_offset": 0.7},
]


def built(options: dict, dtype: torch.dtype = torch.float64):
    """Return a norm with random gains and bias, and a large eps."""
    norm = NormConfig(eps=0.3, **options).build({"d_model": WIDTH}).to(dtype)
    with torch.no_grad():
        for seed, parameter in enumerate(norm.parameters()):
            parameter.copy_(random(WIDTH, seed=10 + seed))
    return norm


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_a_norm_and_its_gradients_equal_the_formula_with_fp32_statistics_under_autocast(options):
    norm, x = built(options), (2 * random(4, WIDTH) + 0.7).requires_grad_()
    assert_same(norm(x), normalised(norm, x), (x, *norm.parameters()), rtol=1e-11, atol=1e-12)
    between = NormSite(PLACEMENTS["both"], NormConfig(eps=0.3, **options)).build(WIDTH, WIDTH).to(torch.float64)
    whole = built({**options, "stat_width": None})  # a norm of the update measures all of it
    between.load_state_dict(norm.state_dict(), strict=False)
    between.post.load_state_dict(norm.state_dict())
    whole.load_state_dict(norm.state_dict())
    assert torch.equal(between.before(x), norm(x))
    assert torch.equal(between.after(x), whole(x))
    norm, x = norm.float(), x.float()
    with torch.autocast("cpu", torch.bfloat16):
        rounded = norm(x)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded, norm(x).to(torch.bfloat16), rtol=0, atol=0)
