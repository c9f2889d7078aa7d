"""What every feed-forward variant promises, also those of installed plugins. A new variant is picked up; give its
template a case below if its defaults do not resolve alone.
"""

from itertools import cycle, product

import pytest
import torch
from measured import counted_flops, kept_bytes, on_meta

from widthwise.config_io import parse, to_data
from widthwise.model.axes import LayerNorm, RMSNorm
from widthwise.model.context import PassContext
from widthwise.model.ffn.interface import FEED_FORWARDS
from widthwise.model.kinds import kind_of, load_plugins
from widthwise.model.norm import NormConfig, NormSite

OPTIONS = {
    "swiglu": [{}, {"ratio": 1.3}, {"ratio": 2.5, "multiple_of": 8}, {"d_ff": 7}],
    "hourglass": [
        {"ratio": 0.5, "multiple_of": 8},
        {"d_hidden": 7, "n_blocks": 1},
        {"d_hidden": 7, "n_blocks": 3, "share_weights": True},
        {"d_hidden": 7, "n_blocks": 2, "norm": "shared"},
        {"d_hidden": 7, "n_blocks": 2, "norm": "none", "block_multiplier": 0.5},
    ],
    "mlp": [
        {},
        {"bias": True, "activation": "gelu_tanh", "ratio": 1.3},
        {"activation": "relu", "d_ff": 57},
        {"bias": True, "activation": "relu2", "ratio": 2.5, "multiple_of": 8},
        {"activation": "silu", "d_ff": 7},
    ],
    "moe": [
        {"n_experts": 3, "top_k": 2, "ratio": 0.25},
        {"n_experts": 5, "top_k": 5, "ratio": 0.5, "multiple_of": 8, "n_shared_experts": 1},
        {"n_experts": 4, "top_k": 2, "d_expert": 7, "n_shared_experts": 2},
    ],
    "dynamic": [
        {"mask": {"kind": "soft"}},
        {"d_ff": 96, "score": {"kind": "mlp"}, "mask": {"kind": "ste", "learn_temperature": True}, "min_fraction": 0.0},
        {"ratio": 2.5, "score": {"kind": "rms_mean"}, "mask": {"kind": "linear_ramp"}, "execution": "masked"},
        {"d_ff": 57, "score": {"kind": "raw_mean", "learn_gain": False}, "mask": {"kind": "anneal"}},
        {"d_ff": 7, "score": {"kind": "const"}, "mask": {"kind": "soft"}},
        {"multiple_of": 8, "mask": {"kind": "none"}},
    ],
}
PLACEMENTS = ("pre", "reordered")
SIZES = [(63, 63), (63, 41), (41, 1), (1, 1)]


load_plugins()  # an installed plugin keeps the contract too
TEMPLATES = {kind_of(cls): cls for cls in FEED_FORWARDS.templates}
CASES = [
    pytest.param(parse(cls, {"kind": kind, **options}), id=f"{kind}-{options}")
    for kind, cls in TEMPLATES.items()
    for options in OPTIONS.get(kind, [{}])
]


def norm_site(placement, d_model, d_out, kind="rms"):
    return NormSite(placement, NormConfig(kind=kind, eps=1e-5, norm_dim=d_model if placement == "pre" else d_out))


def build(template, d_model, d_out, dtype=torch.float64, placement="pre", kind="rms"):
    """A module with random weights, its gains around 1."""
    module = template.at_width(d_model).build(d_model, d_out, norm_site(placement, d_model, d_out, kind)).to(dtype)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for owner in module.modules():
            for parameter in owner.parameters(recurse=False):
                is_gain = isinstance(owner, (RMSNorm, LayerNorm))
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 8 + is_gain)
    return module


def run(module, x):
    """The update alone."""
    return module(x, context(*x.shape[:2]))[0]


def context(batch, length):
    tokens = torch.randint(61, (batch, length), generator=torch.Generator().manual_seed(2))
    return PassContext(tokens, rope={}, mask=None, progress=torch.ones(()))


def whole_cost(template, d_model, d_out, placement, kind="rms"):
    config = template.at_width(d_model)
    return config.cost(d_model, d_out) + config.norm_cost(d_model, d_out, norm_site(placement, d_model, d_out, kind))


def random_input(d_model, dtype=torch.float64, batch=2):
    return torch.randn(batch, 5, d_model, generator=torch.Generator().manual_seed(1), dtype=torch.float32).to(dtype)


def test_config_and_template_have_the_same_kinds():
    assert {kind_of(cls) for cls in FEED_FORWARDS.configs} == set(TEMPLATES)


SITES = [
    pytest.param(*case.values, placement, *size, id=f"{case.id}-{placement}-{size}")
    for (placement, case), size in zip(product(PLACEMENTS, CASES), cycle(SIZES))
]
"""Every template at both places of its norm; the sizes go round."""


@pytest.mark.parametrize(("template", "placement", "d_model", "d_out"), SITES)
class TestContract:
    def test_cost_equals_the_built_parameters(self, template, placement, d_model, d_out):
        config, site = template.at_width(d_model), norm_site(placement, d_model, d_out)
        module = on_meta(lambda: config.build(d_model, d_out, site))
        assert all(p.is_meta for p in module.parameters())
        built = {False: 0, True: 0}
        for name, parameter in module.named_parameters():
            built[name.endswith("norm.weight")] += parameter.numel()
        assert config.cost(d_model, d_out).params == built[False]
        assert config.norm_cost(d_model, d_out, site).params == built[True]

    def test_flops_equal_the_counter(self, template, placement, d_model, d_out):
        module, x = build(template, d_model, d_out, placement=placement), random_input(d_model)
        expected = template.at_width(d_model).cost(d_model, d_out).forward_flops(seq_len=5)
        assert counted_flops(lambda: run(module, x)) == 2 * 5 * expected

    def test_activation_bytes_equal_what_autograd_keeps(self, template, placement, d_model, d_out):
        module = build(template, d_model, d_out, torch.float32, placement)
        x = {batch: random_input(d_model, torch.float32, batch).requires_grad_() for batch in (1, 3)}
        kept = {batch: kept_bytes(lambda batch=batch: run(module, x[batch])) for batch in x}
        expected = whole_cost(template, d_model, d_out, placement).activation_bytes(bytes_per_element=4)
        assert kept[3] - kept[1] == 2 * 5 * expected

    def test_gradients_reach_input_and_every_parameter(self, template, placement, d_model, d_out):
        module, x = build(template, d_model, d_out, placement=placement), random_input(d_model).requires_grad_()
        (run(module, x) * random_input(d_out)).square().sum().backward()
        for tensor in (x, *module.parameters()):
            assert tensor.grad is not None
            assert torch.isfinite(tensor.grad).all()
            assert (tensor.grad != 0).any()

    def test_each_token_alone_gets_an_update_of_the_promised_width(self, template, placement, d_model, d_out):
        module, x = build(template, d_model, d_out, placement=placement), random_input(d_model)
        update = run(module, x)
        assert update.shape == (2, 5, d_out)
        torch.testing.assert_close(update[:, 2:3], run(module, x[:, 2:3]))

    def test_autocast_stays_near_fp64(self, template, placement, d_model, d_out):
        if placement == "reordered" and d_out == 1:
            pytest.skip("the norm of one number is its sign, which rounding may turn")
        exact = run(build(template, d_model, d_out, placement=placement), random_input(d_model))
        module = build(template, d_model, d_out, torch.float32, placement)
        with torch.autocast("cpu", torch.bfloat16):
            rounded = run(module, random_input(d_model, torch.float32))
        assert (rounded - exact).norm() <= 0.03 * exact.norm()


@pytest.mark.parametrize("template", CASES)
def test_config_survives_yaml_data(template):
    config = template.at_width(63)
    assert parse(type(config), to_data(config)) == config


@pytest.mark.parametrize("template", CASES)
@pytest.mark.parametrize("placement", PLACEMENTS)
class TestBehindALayerNorm:
    D_MODEL, D_OUT = 63, 41

    def test_cost_equals_the_built_parameters_and_what_autograd_keeps(self, template, placement):
        module = build(template, self.D_MODEL, self.D_OUT, torch.float32, placement, "layer")
        cost = whole_cost(template, self.D_MODEL, self.D_OUT, placement, "layer")
        assert cost.params == sum(p.numel() for p in module.parameters())
        x = {batch: random_input(self.D_MODEL, torch.float32, batch).requires_grad_() for batch in (1, 3)}
        kept = {batch: kept_bytes(lambda batch=batch: run(module, x[batch])) for batch in x}
        assert kept[3] - kept[1] == 2 * 5 * cost.activation_bytes(bytes_per_element=4)

    def test_gradients_reach_every_parameter(self, template, placement):
        module = build(template, self.D_MODEL, self.D_OUT, placement=placement, kind="layer")
        (run(module, random_input(self.D_MODEL)) * random_input(self.D_OUT)).square().sum().backward()
        assert all(p.grad is not None and (p.grad != 0).any() for p in module.parameters())


@pytest.mark.parametrize("template", CASES)
def test_real_widths_cost_what_the_rounded_config_costs_where_nothing_rounds(template):
    d_model, d_out = 320, 160
    real, whole = template.cost(320.0, 160.0), template.at_width(d_model).cost(d_model, d_out)
    assert real.params == pytest.approx(whole.params)
    assert real.forward_flops(7) == pytest.approx(whole.forward_flops(7))


@pytest.mark.parametrize("template", CASES)
def test_cost_grows_with_the_width(template):
    """The solver relies on it."""
    params = [template.cost(width, width).params for width in (3.0, 3.5, 64.0, 1000.5)]
    assert params == sorted(set(params))
