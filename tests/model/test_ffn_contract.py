"""What every feed-forward variant promises, also those of installed plugins. A new variant is picked up; give its
template a case below if its defaults do not resolve alone.
"""

from itertools import cycle, product

import pytest
import torch
from expansions import widen_stream
from growth_contract import assert_preserved, assert_refused_or_preserved, planned_unless_refused, with_other_values
from measured import counted_flops, kept_bytes, on_meta
from model_cases import D_MODEL, config

from widthwise.config_io import UserError, checked_copy, parse, to_data
from widthwise.growth.bake.baked import bake_plan
from widthwise.growth.describe import expansions
from widthwise.growth.pad import Multiples, pad_plan
from widthwise.growth.plan.model_plan import plan_growth
from widthwise.interop.hf_export import hf_config
from widthwise.model.axes import LayerNorm, RMSNorm
from widthwise.model.config import ModelConfig
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
        {"d_hidden": 57, "n_blocks": 2, "gated": False, "activation": "relu"},
        {"d_hidden": 7, "n_blocks": 3, "gated": False, "activation": "gelu", "share_weights": True},
        {"d_hidden": 7, "n_blocks": 2, "activation": "gelu_tanh"},
        {"d_hidden": 57, "n_blocks": 2, "activation": "relu2", "norm": "shared"},
        {"d_hidden": 57, "n_blocks": 2, "activation": "relu"},
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
    "dynamic_hourglass": [  # with random weights some tokens pass every block, or it would have no gradient
        {"min_fraction": 0.85},
        {"ratio": 0.5, "multiple_of": 8, "mask": {"kind": "soft"}, "min_fraction": 0.0, "start": 0.6},
        {"d_hidden": 7, "n_blocks": 1, "score": {"kind": "mlp"}, "min_fraction": 0.0},
        {"d_hidden": 7, "n_blocks": 3, "share_weights": True, "score": {"kind": "rms_mean"}, "min_fraction": 0.8},
        {"d_hidden": 7, "n_blocks": 2, "norm": "shared", "mask": {"kind": "linear_ramp"}, "start": 0.5},
        {"d_hidden": 57, "n_blocks": 2, "gated": False, "activation": "relu", "norm": "none", "min_fraction": 0.8},
        {"d_hidden": 7, "n_blocks": 2, "activation": "gelu_tanh", "mask": {"kind": "anneal"}},
        {"d_hidden": 7, "n_blocks": 3, "block_multiplier": 0.5, "mask": {"kind": "none"}},
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


def model_with(make_ffn) -> ModelConfig:
    """Two layers of one width. make_ffn: d_model -> the config of their feed-forward."""
    model = config("uniform")
    layers = tuple(layer.model_copy(update={"ffn": make_ffn(layer.d_model)}) for layer in model.layers[:2])
    return checked_copy(model, "model", layers=layers)


def with_ffn(model, change):
    layers = tuple(layer.model_copy(update={"ffn": change(layer.ffn)}) for layer in model.layers)
    return checked_copy(model, "model", layers=layers)


def with_more_units(ffn):
    sizes = {name: getattr(ffn, name) for name in ffn.hidden_axes}
    more = {name: tuple(n + 3 for n in size) if isinstance(size, tuple) else size + 3 for name, size in sizes.items()}
    return checked_copy(ffn, "ffn", **more)


@pytest.mark.parametrize("template", CASES)
class TestGrowth:
    def test_more_hidden_units_preserve_the_function_and_are_told(self, template):
        old = model_with(template.at_width)
        plan = plan_growth(old, with_ffn(old, with_more_units))
        assert sum(plan.new.layers[0].ffn.hidden_widths) > sum(old.layers[0].ffn.hidden_widths)
        assert_preserved(plan)
        assert all("hidden units" in line for line in expansions(plan))
        assert expansions(plan)

    def test_a_wider_stream_is_refused_or_preserves_the_function_and_can_be_baked(self, template):
        old = model_with(template.at_width)
        plan = planned_unless_refused(widen_stream(old, 3), old, "layers.0.ffn.")
        if plan is not None:
            assert_preserved(plan)
            assert_preserved(bake_plan(plan.new))

    def test_padding_rounds_every_hidden_width_up(self, template):
        plan = pad_plan(model_with(template.at_width), Multiples(d_ff=8))
        assert all(width % 8 == 0 for width in plan.new.layers[0].ffn.hidden_widths)
        assert_preserved(plan)

    def test_a_format_that_cannot_hold_it_says_so(self, template):
        """Every feed-forward but SwiGLU, in a model that is a Llama in all else."""
        model = config("uniform", ffn=to_data(template), embedding_multiplier=1.0)
        if template.kind == "swiglu":
            hf_config(model, n_positions=64)
            return
        with pytest.raises(UserError, match=rf"^layers\.0\.ffn\.kind: got {template.kind}; llama has swiglu there"):
            hf_config(model, n_positions=64)


@pytest.mark.parametrize("kind", TEMPLATES)
def test_another_value_of_a_field_is_refused_or_preserves_the_function(kind):
    """Whatever is neither a hidden width nor kept must make no difference."""
    found = [case.values[0].at_width(D_MODEL) for case in CASES if case.values[0].kind == kind]
    for ffn in found[:3]:
        old = model_with(lambda d_model, ffn=ffn: ffn)
        for other in with_other_values(ffn, found, set(ffn.hidden_axes)):
            assert_refused_or_preserved(old, with_ffn(old, lambda _, other=other: other))
