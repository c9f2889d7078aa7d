"""Properties of every residual variant, including installed plugins. A new variant is tested automatically; give it
cases below if it has options.
"""

from itertools import cycle

import pytest
import torch
from comparing import random
from expansions import add_layers, widen_stream
from growth_contract import assert_preserved, assert_refused_or_preserved, planned_unless_refused, with_other_values
from measured import check_against_torch, kept_in_training
from model_cases import AS_IN_THE_PAPERS, config, decoder, random_tokens

from widthwise.config_io import checked_copy, parse, to_data
from widthwise.growth.bake import bake_plan
from widthwise.growth.describe import expansions
from widthwise.interop.hf_export import hf_config
from widthwise.mistakes import UserError
from widthwise.model.kinds import kind_of, load_plugins
from widthwise.model.residual.interface import RESIDUALS

D_MODEL = 20
OPTIONS = {
    "plain": [{}, {"resize": "zero"}, {"resize": "projection", "multiplier": 0.22}, {"resize": "full_projection"}],
    "hyper_connections": [
        {"slot_width": 4},
        {"n_fractions": 5, "n_slots": 11, "embedding": "expand", "multiplier": 0.22},
        {"slot_width": 4, "n_slots": 10, "embedding": "expand", "reduce_init": "mean"},
        {"slot_width": 2, "n_slots": 20, "embedding": "pad", "reduce": "slot"},
        {"slot_width": 4, "n_slots": 10, "embedding": "slot", "group_norm": "layer"},
        {"slot_width": 4, "n_slots": 15, "dynamic": False, "reduce": "slot", "group_norm": "none"},
        {"slot_width": 4, "n_slots": 9, "dynamic": False, "embedding": "pad"},
        {"slot_width": 4, "scale": "numbers"},
        {"slot_width": 4, "n_slots": 10, **AS_IN_THE_PAPERS},
        {"slot_width": 5, "n_slots": 9, "writes": "own", "reduce": "slot"},
        {"n_slots": 11, **AS_IN_THE_PAPERS, "dynamic": False},
        {"slot_width": 4, "n_slots": 11, "state_every": 5, "dynamic": False, "reduce": "slot"},
        {"slot_width": 4, "n_slots": 11, "state_every": 10},
    ],
    "manifold": [
        {},
        {"n_slots": 3, "carry": "permutations", "multiplier": 0.22},
        {"n_slots": 5, "n_iterations": 3, "scale_init": 0.01, "state_every": 5},
        {"n_slots": 2, "coefficient_eps": 0.0, "eps": 0.01, "state_every": 1},
    ],
}
UNKNOWN = "residual: growth does not know"


load_plugins()  # so that installed plugins are tested as well
TEMPLATES = {kind_of(cls): cls for cls in RESIDUALS.templates if kind_of(cls) != "virtual"}
"""All kinds but `virtual`, which is a short form of hyper-connections."""
CASES = [
    pytest.param({"kind": kind, **options}, id=f"{kind}-{options}")
    for kind in TEMPLATES
    for options in OPTIONS.get(kind, [{}])
]


def shape_for(data: dict, shape: str) -> str:
    """Return `shape`, or "uniform" if the residual needs layers of one width."""
    return "uniform" if data.get("writes") == "own" or data["kind"] == "manifold" else shape


@pytest.mark.parametrize("data", CASES)
def test_slots_and_configs_round_trip_and_the_cost_before_rounding_equals_the_cost_of_the_config(data):
    template = parse(TEMPLATES[data["kind"]], data)
    quantum = template.quantum(D_MODEL)
    residual = template.at_widths(D_MODEL, [9 * quantum, D_MODEL])
    assert parse(type(residual), to_data(residual)) == residual
    assert parse(type(template), to_data(template)) == template
    slots = random(2, 3, *residual.slot_shape(D_MODEL))
    assert torch.equal(residual.to_slots(residual.from_slots(slots), D_MODEL), slots)
    for d_read, d_write in ((5 * quantum, 5 * quantum), (5 * quantum, 2 * quantum), (3 * quantum, 5 * quantum)):
        real = template.matched_cost(D_MODEL, float(d_read), float(d_write))
        whole = template.at_widths(D_MODEL, [D_MODEL]).cost(d_read, d_read, d_write)
        assert (real.params, real.flops) == (whole.params, whole.flops)


SHAPES = cycle([("x", "slim"), ("zigzag", "full"), ("growing", "slim"), ("narrowing", "full")])


@pytest.mark.parametrize(("data", "shape"), [(*case.values, shape) for case, shape in zip(CASES, SHAPES)])
def test_a_decoder_has_the_counted_costs_and_gradients_everywhere_and_decodes_with_a_cache(data, shape):
    resolved = config(shape_for(data, shape[0]), shape[1], residual=data)
    check_against_torch(resolved, seq_len=5)
    model = decoder(resolved, dtype=torch.float32)
    assert kept_in_training(model) == resolved.cost().activation_bytes(bytes_per_element=4)
    with torch.autocast("cpu", torch.bfloat16):
        assert kept_in_training(model) == resolved.cost().activation_bytes()
    model, tokens = decoder(resolved), random_tokens(2, 5)
    model.loss(tokens, tokens)[0].backward()
    assert all(p.grad is not None and (p.grad != 0).any() for p in model.parameters())
    cache = model.new_cache(2, 5)
    with torch.no_grad():
        cached = torch.cat([model(piece, cache) for piece in tokens.split([2, 1, 2], dim=1)], dim=1)
        torch.testing.assert_close(cached, model(tokens), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("data", CASES)
def test_growth_and_baking_preserve_the_function_or_are_refused_and_formats_for_plain_streams_refuse_it(data):
    old = config("uniform", residual=data)
    wider = widen_stream(old, 3 * D_MODEL // old.residual.slot_shape(D_MODEL)[1])
    if (plan := planned_unless_refused(wider, old, "residual.", "d_model: ", UNKNOWN)) is not None:
        assert_preserved(plan)
        assert_preserved(bake_plan(plan.new))
        assert expansions(plan)
    plan = planned_unless_refused(add_layers(old, [2]), old, UNKNOWN, "residual.resize: ", "layers: cannot be added")
    is_fixed = data.get("resize", "carry") != "carry"
    assert (plan is None) == (is_fixed or old.residual.layout is None or old.residual.always_mixes)
    if plan is not None:
        assert_preserved(plan)
    llama = config("uniform", residual=data, embedding_multiplier=1.0)
    if is_fixed or data["kind"] != "plain":
        with pytest.raises(UserError, match=r"^residual\.(kind|resize): got .*; (llama|granite) has "):
            hf_config(llama, n_positions=64)


@pytest.mark.parametrize("kind", TEMPLATES)
def test_another_value_of_a_field_is_refused_or_preserves_the_function(kind):
    """A field that is not in `constant_fields` must not affect the function."""
    cases = [case.values[0] for case in CASES if case.values[0]["kind"] == kind]
    models = [config(shape_for(data, "x"), residual=data) for data in cases]
    for old in models[:: -(-len(models) // 3)]:
        for residual in with_other_values(old.residual, [model.residual for model in models], set()):
            wanted = old.model_copy(update={"residual": residual})
            try:
                checked_copy(wanted, "model")
            except UserError:
                continue
            assert_refused_or_preserved(old, wanted)
