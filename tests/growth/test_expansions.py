"""Each growth alone: exact, alive within two steps, and with no zeros but those it needs; and single tensors of it."""

from dataclasses import replace

import expansions
import growth_cases as cases
import pytest
import torch
from growth_cases import (
    Weights,
    check,
    difference,
    growth,
    planned,
    shaped,
    small_model,
    tokens_for,
    with_free_entries,
    with_random_weights,
)
from torch import Tensor

from widthwise.growth.certificate import decoder_of
from widthwise.growth.correspondence import AxisMap
from widthwise.growth.plan import GrowthPlan, grown_states, plan_growth
from widthwise.growth.tensor_plan import Mean, TensorPlan
from widthwise.kernels.rotary import rope_table
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import build
from widthwise.yaml_io import merge

pytestmark = pytest.mark.usefixtures("float64")

UNNEEDED = {"keys_that_do_not_turn": {"layers.1.attention.w_k.bias.weight"}}
"""Zeros that are not needed. A bias of keys adds the same to all scores of a query where nothing turns."""


def outputs(config: ModelConfig, weights: Weights) -> list[Tensor]:
    """Logits, and the losses of MTP heads."""
    tokens = tokens_for(1)
    model = decoder_of(config, weights, torch.float64)
    with torch.no_grad():
        return [model(tokens[:, :-1]), *model.loss(tokens[:, :-1], tokens[:, 1:]).mtp_losses]


def zeros_of(tensor: TensorPlan, old: Tensor) -> Tensor:
    """True at new entries that are 0 where all others are 1."""
    ones = replace(tensor, fresh=cases.Constant(1.0), derived=None, scale=1.0)
    return ones.grow(torch.ones_like(old), torch.Generator()) == 0


def unneeded_zeros(plan: GrowthPlan, weights: Weights, new: Weights) -> set[str]:
    """Tensors whose entries that must be 0, and are, could be anything."""
    before, found = outputs(plan.old, weights), set()
    for name, tensor in plan.tensors.items():
        must_be_zero = zeros_of(tensor, weights[tensor.source] if tensor.source else new[name])
        assert not new[name][must_be_zero].any()
        if must_be_zero.any():
            noise = torch.randn(new[name].shape, generator=torch.Generator().manual_seed(0)) * 1e-3
            after = outputs(plan.new, new | {name: new[name] + noise * must_be_zero})
            if largest_difference(before, after) < 1e-9:
                found.add(name)
    return found


def largest_difference(before: list[Tensor], after: list[Tensor]) -> float:
    return max(difference(*pair) for pair in zip(before, after))


@pytest.mark.parametrize("case", cases.EXPANSIONS)
def test_an_expansion_is_exact_and_alive_and_needs_its_zeros(case):
    plan = planned(case)
    weights = with_random_weights(plan.old, 1)
    new = check(plan, weights)
    large = dict(with_free_entries(plan, 1e3).weights(weights, 2))
    # What a layer norm makes of a mean is 0 up to rounding, and so are sums in another order, times a thousand.
    tolerance = 1e-8 if "layer_norms" in case else 1e-11
    assert largest_difference(outputs(plan.old, weights), outputs(plan.new, large)) <= tolerance
    assert unneeded_zeros(plan, weights, new) == UNNEEDED.get(case, set())


def test_an_hourglass_has_the_weights_and_the_moments_of_the_swiglu():
    weights = with_random_weights(small_model(), seed=4)
    plan = growth({}, merge(cases.BLOCKS, {"ffn": {"n_blocks": 1}}))
    assert not any(is_new.any() for is_new in plan.is_new().values())
    assert all(torch.equal(weight, weights[plan.tensors[name].source]) for name, weight in plan.weights(weights))
    plan = growth({}, cases.BLOCKS)
    state = {name: {"exp_avg": each, "step": torch.tensor(7.0)} for name, each in weights.items()}
    grown = dict(grown_states(plan, state))
    moved = grown["layers.2.ffn.blocks.0.w_gate.weight"]
    assert torch.equal(moved["exp_avg"], state["layers.2.ffn.w_gate.weight"]["exp_avg"])
    assert moved["step"] == 7
    assert "layers.2.ffn.blocks.1.w_gate.weight" not in grown


@pytest.mark.parametrize("head_dim", [6, 8, 14])
def test_pairs_turn_as_before_at_long_positions(head_dim):
    plan = growth({}, expansions.widen_keys, [0], head_dim)
    old_rope, rope = (model.layers[0].attention.rope for model in (plan.old, plan.new))
    rows = plan.tensors["layers.0.attention.w_q.weight"].maps[0].index[:head_dim]
    places = torch.tensor([int((rows == i).nonzero()[0]) for i in range(4)])
    positions = torch.tensor([[1, 4096]])
    for old, new in zip(rope_table(positions, old_rope), rope_table(positions, rope)):
        assert (old - new[..., places]).abs().max() <= 1e-9
        assert new.shape[-1] == head_dim


def test_new_weights_are_as_large_as_old_ones():
    """Old weights have a standard deviation of 0.3; an untrained model one of 0.01."""
    base = {"d_model": 40, "init": {"std": 0.02, "width_multiplier": 4.0}}
    units, stream = growth(base, expansions.widen_ffn, [0], 60), growth(base, expansions.widen_stream, 4)
    weights = with_random_weights(units.old, 0)
    rows = dict(units.weights(weights))["layers.0.ffn.w_up.weight"][10:]
    assert rows.std().item() == pytest.approx(0.3, rel=0.08)  # of 2000 numbers
    gain = dict(stream.weights(weights))["layers.1.ffn.norm.weight"]
    assert torch.equal(gain[40:], gain[:40].mean().expand(4))


INSERTED = TensorPlan("w", (AxisMap.of(2, [0, -1, 1]), AxisMap.of(3, [0, 1, 2, -1], zero=True)))


def test_old_entries_stand_where_the_maps_say_and_new_ones_are_drawn_or_zero():
    generator = torch.Generator().manual_seed(0)
    old = torch.randn(2, 3, generator=generator)
    new = INSERTED.grow(old, generator)
    assert torch.equal(new[[0, 2], :3], old)
    assert new[1, :3].all()
    assert not new[:, 3].any()
    assert INSERTED.is_new().tolist() == [[False, False, False, True], [True] * 4, [False, False, False, True]]
    assert zeros_of(INSERTED, old).nonzero().tolist() == [[0, 3], [1, 3], [2, 3]]
    carried = INSERTED.carry(old, factor=0.5, new_value=7.0)  # as moments are
    assert torch.equal(carried[[0, 2], :3], old / 2)
    assert (carried[INSERTED.is_new()] == 7.0).all()
    assert torch.equal(INSERTED.grow(old.bfloat16(), generator)[[0, 2], :3], old.bfloat16())


def test_every_tensor_has_draws_of_its_own():
    plan = growth({}, expansions.widen_ffn, [0, 1], 110)
    new = dict(plan.weights(with_random_weights(plan.old, 0), seed=3))
    drawn = [new[f"layers.{i}.ffn.{leaf}.weight"][10:].flatten() for i in (0, 1) for leaf in ("w_gate", "w_up")]
    assert (torch.stack(drawn).corrcoef() - torch.eye(4)).abs().max() < 0.2


@pytest.mark.parametrize(
    ("gains", "offset", "new"), [([1.0, 2.0, 6.0], 0.0, 3.0), ([0.0] * 3, 0.0, 1.0), ([-1.0] * 3, 1.0, 0.0)]
)
def test_new_gains_are_the_mean_but_never_zero(gains, offset, new):
    """The gain is the entry plus the offset."""
    plan = TensorPlan("g", (AxisMap.appended(3, 5, zero=False),), Mean(gain_offset=offset))
    assert plan.grow(torch.tensor(gains), torch.Generator()).tolist() == [*gains, new, new]


@pytest.mark.parametrize("placement", ["pre", "reordered", "both"])
def test_added_layers_are_drawn_as_those_of_an_untrained_model(placement):
    """By width and by depth, whatever the old weights are; but for what makes them silent."""
    init = {"std": 0.3, "depth_scaled": True, "width_multiplier": 2.0}
    config = shaped([16, 64, 16], d_model=16, norm={"placement": placement}, attention={"bias": True}, init=init)
    plan = plan_growth(config, *expansions.add_layers(config, [2], like=1))
    new, untrained = dict(plan.weights(with_random_weights(config, 0))), build(plan.new, 0).state_dict()
    silent = {
        "pre": {"attention.w_o", "ffn.w_down"},
        "reordered": {"attention.norm", "ffn.norm"},
        "both": {"attention.norm.post", "ffn.norm.post"},
    }[placement]
    for name in [name for name in new if name.startswith("layers.2.")]:
        size, usual = (float(weights[name].square().mean().sqrt()) for weights in (new, untrained))
        is_silent = name.removeprefix("layers.2.").removesuffix(".weight") in silent
        assert size == pytest.approx(0 if is_silent else usual, rel=0.1), name
