"""Norms whose output is divided by the root of the number of their layer (arXiv:2502.05795)."""

import math

from expansions import add_layers
from growth_contract import assert_preserved
from model_cases import config

from widthwise.growth.bake import bake_plan
from widthwise.growth.describe import kept_constants
from widthwise.growth.plan import plan_growth

SCALED = {"norm": {"scaling": "depth"}}


def factors(model) -> list[tuple[float, float]]:
    return [(layer.attention_norm.output_multiplier, layer.ffn_norm.output_multiplier) for layer in model.layers]


def test_both_norms_of_a_layer_have_its_factor_and_those_outside_of_layers_none():
    model = config("x", **SCALED, mtp={"n_depths": 1})
    assert factors(model) == [(1 / math.sqrt(number), 1 / math.sqrt(number)) for number in range(1, 6)]
    assert model.mtp.layer.ffn_norm.output_multiplier == 1 / math.sqrt(6)
    assert {norm.output_multiplier for norm in (model.final_norm, model.mtp.final_norm, model.mtp.slot_norm)} == {1.0}
    assert set(factors(config("x"))) == {(1.0, 1.0)}


def test_layers_keep_their_factors_when_others_come_between_and_say_so():
    old = config("uniform", **SCALED)
    wanted, correspondence = config([20] * 6, **SCALED), add_layers(old, [2])[1]
    plan = plan_growth(old, wanted, correspondence)
    assert_preserved(plan)
    (added,) = [j for j, source in enumerate(correspondence.layers) if source is None]
    kept = factors(plan.new)
    assert kept.pop(added) == (1 / math.sqrt(added + 1), 1 / math.sqrt(added + 1))
    assert kept == factors(old)
    assert "layer 4: attention_norm.output_multiplier stays 0.57735 (the recipe would have 0.5)" in [
        str(constant) for constant in kept_constants(plan, wanted)
    ]
    assert_preserved(bake_plan(plan.new))
