"""What becomes of one tensor by its plan, and what added layers begin with."""

import expansions
import pytest
import torch
from growth_cases import BLOCKS, Constant, shaped, small_model, weights_of, with_random_weights
from torch import Tensor

from widthwise.growth.correspondence import AxisMap
from widthwise.growth.plan import plan_growth
from widthwise.growth.tensor_plan import FreshEntries, Mean, OrthogonalCopies, TensorPlan
from widthwise.mistakes import UserError
from widthwise.model.decoder import build


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator(), dtype=torch.float64)


INSERTED = TensorPlan("w", (AxisMap.of(2, [0, -1, 1]), AxisMap.of(3, [0, 1, 2, -1], zero=True)))


def test_old_entries_stand_where_the_maps_say_and_new_ones_are_drawn_or_zero():
    old = numbers(2, 3)
    new = INSERTED.grow(old, generator())
    assert torch.equal(new[[0, 2], :3], old)
    assert new[1, :3].all()
    assert not new[:, 3].any()
    assert INSERTED.is_new().tolist() == [[False, False, False, True], [True] * 4, [False, False, False, True]]
    assert INSERTED.must_be_zero().nonzero().tolist() == [[0, 3], [1, 3], [2, 3]]
    carried = INSERTED.carry(old, factor=0.5, new=7.0)  # as moments are
    assert torch.equal(carried[[0, 2], :3], old / 2)
    assert (carried[INSERTED.is_new()] == 7.0).all()
    assert torch.equal(INSERTED.grow(old.bfloat16(), generator())[[0, 2], :3], old.bfloat16())


def test_every_tensor_has_draws_of_its_own():
    config = small_model()
    plan = plan_growth(config, *expansions.widen_ffn(config, [0, 1], 110))
    new = dict(plan.weights(with_random_weights(config, 0), seed=3))
    drawn = [new[f"layers.{i}.ffn.{leaf}.weight"][10:].flatten() for i in (0, 1) for leaf in ("w_gate", "w_up")]
    assert (torch.stack(drawn).corrcoef() - torch.eye(4)).abs().max() < 0.2


def test_means_are_those_of_the_old_entries_of_a_group():
    axis = AxisMap.of(2, [0, 1, -1])
    rows = AxisMap(4, torch.tensor([0, 1, -1, 2, 3, -1]), torch.zeros(6, dtype=torch.bool), average_over=3)
    old = numbers(4, 2)
    new = TensorPlan("w", (rows, axis)).grow(old, generator())
    torch.testing.assert_close(new[2, :2], (old[0] + old[1]) / 2)
    torch.testing.assert_close(new[5, :2], (old[2] + old[3]) / 2)


def test_new_gains_are_the_mean_but_never_zero():
    plan = TensorPlan("g", (AxisMap.appended(3, 5, zero=False),), Mean())
    assert plan.grow(torch.tensor([1.0, 2.0, 6.0]), generator()).tolist() == [1, 2, 6, 3, 3]
    assert plan.grow(torch.zeros(3), generator()).tolist() == [0, 0, 0, 1, 1]
    plan = TensorPlan("g", (AxisMap.appended(3, 4, zero=False),), Mean(gain_offset=1.0))
    assert plan.grow(torch.full((3,), -1.0), generator()).tolist() == [-1, -1, -1, 0]


def test_offset_gains_are_scaled():
    plan, weights = TensorPlan.same("g", (3,), scale=4.0, shift=3.0), torch.tensor([-1.0, 0.0, 0.5])
    assert (1 + plan.grow(weights, generator())).tolist() == [0, 4, 6]


@pytest.mark.parametrize("fresh", [FreshEntries(), Constant(1e3)])
def test_turned_rows_are_as_long_as_their_originals_for_every_input(fresh):
    """Two groups of three rows become nine each; columns grow too, and a third group is drawn."""
    index = [-1, 0, -1, 1, 2, -1, -1, -1, -1]
    rows = AxisMap.of(6, [*index, *(i + 3 if i >= 0 else -1 for i in index), *[-1] * 9])
    plan = TensorPlan("w_q", (rows, AxisMap.appended(4, 5, zero=False)), fresh, OrthogonalCopies(3, seed=5))
    old = numbers(6, 4)
    new = plan.grow(old, generator())
    x = numbers(5, 7)
    for group in range(2):
        q, original = (new @ x)[9 * group : 9 * group + 9], (new @ x)[[9 * group + i for i in (1, 3, 4)]]
        torch.testing.assert_close(q.square().sum(dim=0), 3 * original.square().sum(dim=0))
    assert torch.equal(new[rows.index >= 0, :4], old)
    assert new[18:].all()
    bias = TensorPlan("b_q", (rows,), derived=OrthogonalCopies(3, seed=5)).grow(old[:, 0], generator())
    torch.testing.assert_close(bias[:18], new[:18, 0], rtol=0, atol=1e-12)


def test_parts_of_experts_are_their_columns_times_their_number():
    split = TensorPlan.same("w_down", (6, 4), scale=2.0, cut=(3, 2))
    old = numbers(6, 4)
    new = split.grow(old, generator())
    assert new.shape == (12, 2)
    for expert in range(3):
        for part in range(2):
            found = new.view(3, 2, 2, 2)[expert, part]
            assert torch.equal(found, 2 * old.view(3, 2, 4)[expert, :, 2 * part : 2 * part + 2])
    assert torch.equal(split.carry(old, 0.5, 0.0), new / 4)


@pytest.mark.parametrize("placement", ["pre", "reordered", "both"])
def test_added_layers_are_drawn_as_those_of_an_untrained_model(placement):
    """By width and by depth, whatever the old weights are; but for what makes them silent."""
    init = {"std": 0.3, "depth_scaled": True, "width_multiplier": 2.0}
    config = shaped([16, 64, 16], d_model=16, norm={"placement": placement}, attention={"bias": True}, init=init)
    plan = plan_growth(config, *expansions.add_layers(config, [2], like=1))
    new, untrained = dict(plan.weights(with_random_weights(config, 0))), weights_of(build(plan.new, 0))
    silent = {
        "pre": {"attention.w_o", "ffn.w_down"},
        "reordered": {"attention.norm", "ffn.norm"},
        "both": {"attention.norm.post", "ffn.norm.post"},
    }[placement]
    for name in [name for name in new if name.startswith("layers.2.")]:
        size, usual = (float(weights[name].square().mean().sqrt()) for weights in (new, untrained))
        is_silent = name.removeprefix("layers.2.").removesuffix(".weight") in silent
        assert size == pytest.approx(0 if is_silent else usual, rel=0.1), name


def test_growth_refuses_fewer_blocks_in_layers_that_write_less_than_they_read():
    old, fewer = (shaped([16, 8, 12], ffn={**BLOCKS, "n_blocks": n_blocks}) for n_blocks in (3, 2))
    with pytest.raises(UserError, match=r"n_blocks: got 2 where it was 3; growth takes nothing away$"):
        plan_growth(old, fewer)
