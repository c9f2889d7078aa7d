"""Each expansion and conversion alone: exact, alive within two steps, and with no zeros but those it needs."""

from typing import Any

import expansions
import pytest
import torch
from growth_cases import (
    BLOCKS,
    CHOSEN,
    EXPANSIONS,
    Weights,
    check,
    difference,
    logits_of,
    planned,
    small_model,
    tokens_for,
    with_free_entries,
    with_random_weights,
)
from torch import Tensor

from widthwise.growth.certificate import decoder_of
from widthwise.growth.plan import GrowthPlan, grown_states, plan_growth
from widthwise.kernels.rotary import rope_table
from widthwise.model.config import ModelConfig
from widthwise.yaml_io import merge

pytestmark = pytest.mark.usefixtures("float64")

UNNEEDED = {"keys_that_do_not_turn": {"layers.1.attention.w_k.bias.weight"}}
"""Zeros that are not needed. A bias of keys adds the same to all scores of a query where nothing turns."""

SLOTS = {"kind": "hyper_connections", "slot_width": 4, "n_slots": 5, "dynamic": False, "group_norm": "none"}
UNMASKED, MASKED = {"mask": {"kind": "none"}}, {"mask": {"kind": "ste"}}
CONVERSIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "hourglass": ({}, {"ffn": BLOCKS}),
    "hourglass, wider": ({}, {"ffn": {**BLOCKS, "d_hidden": 13}}),
    "hourglass behind reordered norms": ({"norm": {"placement": "reordered"}}, {"ffn": BLOCKS}),
    "hourglass between norms": ({"norm": {"placement": "both", "gain_offset": 1.0}}, {"ffn": BLOCKS}),
    "hourglass under layer norms and slots": ({"norm": {"kind": "layer"}, "residual": SLOTS}, {"ffn": BLOCKS}),
    "dynamic": ({}, {"ffn": CHOSEN}),
    "dynamic, wider": ({}, {"ffn": {**CHOSEN, "d_ff": 13}}),
    "dynamic, that begins to choose": ({"ffn": CHOSEN | UNMASKED}, {"ffn": MASKED}),
    "a higher base with the old frequencies": (
        {},
        {"layers": {1: {"attention": {"head_dim": 6, "v_head_dim": 4, "rope_base": 10000.0 ** (6 / 4)}}}},
    ),
    "all at once": (
        {},
        {
            "d_model": 20,
            "n_layers": 5,
            "ffn": {**BLOCKS, "n_blocks": 2, "d_hidden": 12},
            "mtp": {"n_depths": 2, "coefficient": 0.0},
        },
    ),
    "coefficients that follow the state": ({"residual": SLOTS}, {"residual": {"dynamic": True, "n_slots": 6}}),
}
"""What the old model has, and what the new one has beside it."""


def outputs(config: ModelConfig, weights: Weights) -> list[Tensor]:
    """Logits, and the losses of MTP heads."""
    tokens = tokens_for(1)
    model = decoder_of(config, weights, torch.float64)
    with torch.no_grad():
        return [model(tokens[:, :-1]), *model.loss(tokens[:, :-1], tokens[:, 1:]).mtp_losses]


def unneeded_zeros(plan: GrowthPlan, weights: Weights, new: Weights) -> set[str]:
    """Tensors whose entries that must be 0, and are, could be anything."""
    before, found = outputs(plan.old, weights), set()
    for name, tensor in plan.tensors.items():
        must_be_zero = tensor.must_be_zero()
        assert not new[name][must_be_zero].any()
        if must_be_zero.any():
            noise = torch.randn(new[name].shape, generator=torch.Generator().manual_seed(0)) * 1e-3
            after = outputs(plan.new, new | {name: new[name] + noise * must_be_zero})
            if max(difference(*pair) for pair in zip(before, after)) < 1e-9:
                found.add(name)
    return found


@pytest.mark.parametrize("case", EXPANSIONS)
def test_an_expansion_is_exact_and_alive_and_needs_its_zeros(case):
    plan = planned(case)
    weights = with_random_weights(plan.old, 1)
    new, tokens = check(plan, weights), tokens_for(1)[:, :-1]
    large = dict(with_free_entries(plan, 1e3).weights(weights, 2))
    # What a layer norm makes of a mean is 0 up to rounding, and so are sums in another order, times a thousand.
    tolerance = 1e-8 if "layer_norms" in case else 1e-11
    assert difference(logits_of(plan.old, weights, tokens), logits_of(plan.new, large, tokens)) <= tolerance
    assert unneeded_zeros(plan, weights, new) == UNNEEDED.get(case, set())


@pytest.mark.parametrize(("base", "changes"), CONVERSIONS.values(), ids=CONVERSIONS)
def test_a_conversion_is_exact_whatever_is_free_and_alive(base, changes):
    old = small_model(**base)
    plan, weights = plan_growth(old, small_model(**merge(base, changes))), with_random_weights(old, seed=1)
    check(plan, weights)
    free, tokens = dict(with_free_entries(plan, 0.4).weights(weights, 2)), tokens_for(1)[:, :-1]
    assert difference(logits_of(old, weights, tokens), logits_of(plan.new, free, tokens)) <= 1e-12


def test_an_hourglass_has_the_weights_and_the_moments_of_the_swiglu():
    old = small_model()
    plan, weights = plan_growth(old, small_model(ffn={**BLOCKS, "n_blocks": 1})), with_random_weights(old, seed=4)
    assert not any(is_new.any() for is_new in plan.is_new().values())
    assert all(torch.equal(weight, weights[plan.tensors[name].source]) for name, weight in plan.weights(weights))
    plan = plan_growth(old, small_model(ffn=BLOCKS))
    state = {name: {"exp_avg": each, "step": torch.tensor(7.0)} for name, each in weights.items()}
    grown = dict(grown_states(plan, state))
    moved = grown["layers.2.ffn.blocks.0.w_gate.weight"]
    assert torch.equal(moved["exp_avg"], state["layers.2.ffn.w_gate.weight"]["exp_avg"])
    assert moved["step"] == 7
    assert "layers.2.ffn.blocks.1.w_gate.weight" not in grown


@pytest.mark.parametrize("head_dim", [6, 8, 14])
def test_pairs_turn_as_before_at_long_positions(head_dim):
    config = small_model()
    plan = plan_growth(config, *expansions.widen_keys(config, [0], head_dim))
    old_rope, rope = (c.layers[0].attention.rope for c in (config, plan.new))
    rows = plan.tensors["layers.0.attention.w_q.weight"].maps[0].index[:head_dim]
    places = torch.tensor([int((rows == i).nonzero()[0]) for i in range(4)])
    positions = torch.tensor([[1, 4096]])
    for old, new in zip(rope_table(positions, old_rope), rope_table(positions, rope)):
        assert (old - new[..., places]).abs().max() <= 1e-9
        assert new.shape[-1] == head_dim


def test_new_weights_are_as_large_as_old_ones():
    """Old weights have a standard deviation of 0.3; an untrained model one of 0.01."""
    config = small_model(d_model=40, init={"std": 0.02, "width_multiplier": 4.0})
    weights = with_random_weights(config, 0)
    plan = plan_growth(config, *expansions.widen_ffn(config, [0], 60))
    rows = dict(plan.weights(weights))["layers.0.ffn.w_up.weight"][10:]
    assert rows.std().item() == pytest.approx(0.3, rel=0.08)  # of 2000 numbers
    wider = plan_growth(config, *expansions.widen_stream(config, 4))
    gain = dict(wider.weights(weights))["layers.1.ffn.norm.weight"]
    assert torch.equal(gain[40:], gain[:40].mean().expand(4))
