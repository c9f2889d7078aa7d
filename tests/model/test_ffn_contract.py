"""Properties of every feed-forward variant, including installed plugins. A new variant is tested automatically; add
cases for it below if its template has required options.
"""

from itertools import cycle

import pytest
import torch
from boxes import refusal
from comparing import CONTEXT, assert_same, norm_site, random, randomised
from expansions import widen_stream
from growth_contract import assert_preserved, assert_refused_or_preserved, planned_unless_refused, with_other_values
from literal_decoder import feed_forward
from measured import counted_flops, kept_per_token, on_meta
from model_cases import D_MODEL, config

from widthwise.config_io import checked_copy, parse, to_data
from widthwise.growth.bake import bake_plan
from widthwise.growth.describe import expansions
from widthwise.growth.plan import plan_growth
from widthwise.interop.hf_export import hf_config
from widthwise.mistakes import UserError
from widthwise.model.config import ModelConfig
from widthwise.model.ffn.interface import FEED_FORWARDS
from widthwise.model.kinds import kind_of, load_plugins

OPTIONS = {
    "swiglu": [{}, {"ratio": 1.3}, {"ratio": 2.5, "multiple_of": 8}, {"d_ff": 7}],
    "hourglass": [
        {"ratio": 0.5, "multiple_of": 8},
        {"d_hidden": 7, "n_blocks": 1},
        {"d_hidden": 7, "n_blocks": 3},
        {"d_hidden": 57, "n_blocks": 2},
    ],
    "mlp": [
        {},
        {"bias": True, "activation": "gelu_tanh", "ratio": 1.3},
        {"activation": "relu", "d_ff": 57},
        {"bias": True, "activation": "relu2", "ratio": 2.5, "multiple_of": 8},
        {"activation": "silu", "d_ff": 7},
        {"activation": "gelu_tanh", "gated": True, "d_ff": 57},
        {"activation": "relu", "gated": True, "bias": True, "ratio": 1.3},
        {"activation": "relu2", "gated": True, "d_ff": 7},
    ],
    "moe": [
        {"n_experts": 3, "top_k": 2, "ratio": 0.25},
        {"n_experts": 5, "top_k": 5, "ratio": 0.5, "multiple_of": 8, "n_shared_experts": 1},
        {"n_experts": 4, "top_k": 2, "d_expert": 7, "n_shared_experts": 2, "normalised": False},
        {"n_experts": 3, "top_k": 2, "d_expert": 9, "n_shared_experts": 1, "gated_shared": True},
    ],
    "dynamic": [
        {"mask": {"kind": "soft"}},
        {"d_ff": 96, "mask": {"kind": "ste"}, "min_fraction": 0.0},
        {"ratio": 2.5, "score": {"kind": "raw_mean"}, "mask": {"kind": "soft"}, "execution": "masked"},
        {"d_ff": 57, "score": {"kind": "raw_mean", "learn_gain": False}, "mask": {"kind": "ste"}},
        {"d_ff": 7, "score": {"kind": "const"}, "mask": {"kind": "soft"}},
        {"multiple_of": 8, "mask": {"kind": "none"}},
    ],
}
LITERAL = ("swiglu", "mlp", "hourglass", "moe")
"""Kinds with a formula in literal_decoder.py. `dynamic` is compared in test_dynamic.py."""
NORMS_AND_SIZES = [
    *(("pre", "rms", 63, 41), ("reordered", "rms", 63, 63), ("pre", "layer", 63, 41), ("reordered", "layer", 63, 41)),
    *(("pre", "rms", 41, 1), ("reordered", "rms", 1, 1), ("pre", "layer", 41, 1)),
    *(("both", "rms", 63, 41), ("both", "layer", 41, 41)),
]
"""Placement and kind of the norm, d_model and d_out; a LayerNorm of one number would be 0."""


load_plugins()  # so that installed plugins are tested as well
TEMPLATES = {kind_of(cls): cls for cls in FEED_FORWARDS.templates}
CASES = [
    pytest.param(parse(cls, {"kind": kind, **options}), id=f"{kind}-{options}")
    for kind, cls in TEMPLATES.items()
    for options in OPTIONS.get(kind, [{}])
]


def build(template, d_model, d_out, dtype=torch.float64, placement="pre", kind="rms"):
    """Return a module with random weights and gains around 1."""
    module = template.at_width(d_model).build(d_model, d_out, norm_site(placement, d_model, d_out, kind))
    return randomised(module, size=1 / 8).to(dtype)


def run(module, x):
    """Return only the update."""
    return module(x, CONTEXT)[0]


def random_input(d_model, dtype=torch.float64, batch=2):
    return random(batch, 5, d_model, dtype=dtype)


SITES = [pytest.param(*case.values, *site, id=f"{case.id}-{site}") for case, site in zip(CASES, cycle(NORMS_AND_SIZES))]
"""Every template once, with norms and sizes in turn."""


@pytest.mark.parametrize(("template", "placement", "norm", "d_model", "d_out"), SITES)
class TestContract:
    def test_cost_equals_the_built_parameters_and_the_flops_and_kept_bytes_of_a_pass(
        self, template, placement, norm, d_model, d_out
    ):
        config, site = template.at_width(d_model), norm_site(placement, d_model, d_out, norm)
        cost, norm_cost = config.cost(d_model, d_out), config.norm_cost(d_model, d_out, site)
        built = {False: 0, True: 0}
        for name, parameter in on_meta(lambda: config.build(d_model, d_out, site)).named_parameters():
            assert parameter.is_meta
            built[".norm." in f".{name}"] += parameter.numel()
        assert (cost.params, norm_cost.params) == (built[False], built[True])

        module, x = build(template, d_model, d_out, placement=placement, kind=norm), random_input(d_model)
        assert counted_flops(lambda: run(module, x)) == 2 * 5 * cost.forward_flops(seq_len=5)

        module = build(template, d_model, d_out, torch.float32, placement, norm)
        kept = kept_per_token(lambda n: run(module, random_input(d_model, torch.float32, n).requires_grad_()), length=5)
        assert kept == (cost + norm_cost).activation_bytes(bytes_per_element=4)

    def test_the_update_of_each_token_equals_the_formula_with_gradients_everywhere_and_is_close_under_autocast(
        self, template, placement, norm, d_model, d_out
    ):
        module = build(template, d_model, d_out, placement=placement, kind=norm)
        x = random_input(d_model).requires_grad_()
        update = run(module, x)
        assert update.shape == (2, 5, d_out)
        torch.testing.assert_close(update[:, 2:3], run(module, x[:, 2:3]))
        if template.kind in LITERAL:
            assert_same(update, feed_forward(module, template.kind, x, placement), (x, *module.parameters()))
        (update * random(2, 5, d_out, seed=3)).square().sum().backward()
        for tensor in (x, *module.parameters()):
            assert tensor.grad is not None
            assert torch.isfinite(tensor.grad).all()
            assert (tensor.grad != 0).any()
        if 1 not in (d_model, d_out):  # the norm of one number is its sign, which rounding may turn
            rounding = build(template, d_model, d_out, torch.float32, placement, norm)
            with torch.autocast("cpu", torch.bfloat16):
                rounded = run(rounding, random_input(d_model, torch.float32))
            assert (rounded - update).norm() <= 0.03 * update.norm()


@pytest.mark.parametrize("template", CASES)
def test_the_cost_before_rounding_equals_the_cost_of_the_config_and_grows_with_the_width(template):
    """The solver of shapes relies on it."""
    d_model, d_out = 320, 160
    real, whole = template.cost(320.0, 160.0), template.at_width(d_model).cost(d_model, d_out)
    assert real.params == pytest.approx(whole.params)
    assert real.forward_flops(7) == pytest.approx(whole.forward_flops(7))
    params = [template.cost(width, width).params for width in (3.0, 3.5, 64.0, 1000.5)]
    assert params == sorted(set(params))
    config = template.at_width(63)
    assert parse(type(config), to_data(config)) == config


def model_with(ffn) -> ModelConfig:
    """Return a model of two layers of width D_MODEL with this feed-forward."""
    model = config("uniform")
    layers = tuple(layer.model_copy(update={"ffn": ffn}) for layer in model.layers[:2])
    return checked_copy(model, "model", layers=layers)


def with_more_units(ffn):
    sizes = {name: getattr(ffn, name) for name in ffn.hidden_axes}
    more = {name: tuple(n + 3 for n in size) if isinstance(size, tuple) else size + 3 for name, size in sizes.items()}
    return checked_copy(ffn, "ffn", **more)


@pytest.mark.parametrize("template", CASES)
def test_growth_and_baking_preserve_the_function_or_are_refused_and_formats_for_swiglus_refuse_it(template):
    ffn = template.at_width(D_MODEL)
    old = model_with(ffn)
    plan = plan_growth(old, model_with(with_more_units(ffn)))
    assert sum(plan.new.layers[0].ffn.hidden_widths) > sum(old.layers[0].ffn.hidden_widths)
    assert_preserved(plan)
    assert expansions(plan)
    assert all("hidden units" in line for line in expansions(plan))
    if (plan := planned_unless_refused(widen_stream(old, 3), old, "layers.0.ffn.")) is not None:
        assert_preserved(plan)
        assert_preserved(bake_plan(plan.new))
    model = config("uniform", ffn=to_data(template), embedding_multiplier=1.0)
    if template.kind != "swiglu" and getattr(template, "n_shared_experts", 1):  # a mixture without one is Mixtral's
        refused = r"^layers\.0\.(ffn|attention)\.(kind|d_shared|bias|normalised): got .*; \w+ has .* there"
        with pytest.raises(UserError, match=refused):
            hf_config(model, n_positions=64)


@pytest.mark.parametrize("kind", TEMPLATES)
def test_another_value_of_a_field_is_refused_or_preserves_the_function(kind):
    """A field that is neither a hidden width nor in `constant_fields` must not affect the function."""
    ffns = [case.values[0].at_width(D_MODEL) for case in CASES if case.values[0].kind == kind]
    for ffn in ffns[:: -(-len(ffns) // 3)]:
        for other in with_other_values(ffn, ffns, set(ffn.hidden_axes)):
            assert_refused_or_preserved(model_with(ffn), model_with(other))


HOURGLASS = {"kind": "hourglass", "n_blocks": 2}
MOE = {"kind": "moe", "n_experts": 4, "top_k": 2}
MISTAKES = [
    (HOURGLASS | {"d_hidden": 5, "ratio": 0.4}, "d_hidden: conflicts with ratio or multiple_of; give the width"),
    (HOURGLASS | {"d_hidden": [5, 3, 2]}, "d_hidden: got 3 widths for n_blocks = 2"),
    (HOURGLASS | {"share_weights": True}, "ffn.share_weights: unknown key; was removed; each block has separate"),
    (MOE | {"top_k": 5}, "top_k: got 5; must be at most n_experts = 4"),
    (MOE | {"top_k": 0}, "top_k: got 0"),
    (MOE | {"z_coefficient": -1}, "z_coefficient: got -1"),
    (MOE | {"gated_shared": True}, "gated_shared: got true; needs a shared expert; give n_shared_experts"),
    ({"kind": "dynamic", "score": {"kind": "const", "learn_gain": True}}, "score.learn_gain: unknown key"),
    ({"kind": "dynamic", "score": {"kind": "token"}}, "score.kind: got 'token'; allowed: const, linear"),
    (
        {"kind": "dynamic", "mask": {"kind": "nested"}},
        "mask.kind: got 'nested'; mask nested was removed; use `train",
    ),
]


@pytest.mark.parametrize(("ffn", "message"), MISTAKES)
def test_invalid_options_are_refused(ffn, message):
    changes = {"layers": {0: {"ffn": ffn}}} if isinstance(ffn.get("d_hidden"), list) else {"ffn": ffn}
    assert message in refusal(config, "uniform", **changes)
