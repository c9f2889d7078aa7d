import expansions
import pytest
import torch
from growth_cases import shaped, small_model, with_random_weights
from model_cases import config, decoder
from torch import Tensor

from widthwise.growth.maps.axis_map import AxisMap
from widthwise.growth.plan.fresh import Constant, Mean, Mirrored, OrthogonalCopies, Revived
from widthwise.growth.plan.model_plan import plan_growth
from widthwise.growth.plan.tensor_plan import Split, TensorPlan


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def numbers(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=generator(), dtype=dtype)


INSERTED = TensorPlan("w", (AxisMap.of(2, [0, -1, 1]), AxisMap.of(3, [0, 1, 2, -1], zero=True)))


def test_old_entries_stand_where_the_maps_say_and_new_ones_are_drawn_or_zero():
    old = numbers(2, 3)
    new = INSERTED.grow(old, generator())
    assert torch.equal(new[[0, 2], :3], old)
    assert new[1, :3].all()
    assert not new[:, 3].any()
    assert torch.equal(INSERTED.shrink(new), old)
    assert INSERTED.is_new().tolist() == [[False, False, False, True], [True] * 4, [False, False, False, True]]
    assert INSERTED.must_be_zero().nonzero().tolist() == [[0, 3], [1, 3], [2, 3]]


def test_entries_that_an_earlier_growth_made_stay_new():
    was_new = torch.tensor([[True, False, False], [False, False, False]])
    assert INSERTED.is_new(was_new)[:, 0].tolist() == [True, True, False]


def test_what_is_kept_beside_a_tensor_is_put_where_its_entries_are():
    moments = numbers(2, 3)
    carried = INSERTED.carry(moments, factor=0.5, new=7.0)
    assert torch.equal(carried[[0, 2], :3], moments / 2)
    assert (carried[INSERTED.is_new()] == 7.0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_growth_changes_no_bit_of_any_type(dtype):
    old = numbers(2, 3, dtype=dtype)
    new = INSERTED.grow(old, generator())
    assert new.dtype == dtype
    assert torch.equal(INSERTED.shrink(new), old)


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_draws_do_not_depend_on_the_default_type(default):
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    found = INSERTED.grow(numbers(2, 3), generator())
    torch.set_default_dtype(before)
    assert torch.equal(found, INSERTED.grow(numbers(2, 3), generator()))


def test_draws_are_as_large_as_old_entries():
    plan = TensorPlan("w", (AxisMap.appended(4, 2000, zero=False), AxisMap.same(8)))
    old = 0.07 * numbers(4, 8)
    new = plan.grow(old, generator())[4:]
    assert float(new.square().mean()) == pytest.approx(float(old.square().mean()), rel=0.05)


def test_every_tensor_has_draws_of_its_own():
    config = small_model()
    plan = plan_growth(config, *expansions.widen_ffn(config, [0, 1], 110))
    new = dict(plan.weights(with_random_weights(config, 0), seed=3))
    drawn = [new[f"layers.{i}.ffn.{leaf}.weight"][10:].flatten() for i in (0, 1) for leaf in ("w_gate", "w_up")]
    assert (torch.stack(drawn).corrcoef() - torch.eye(4)).abs().max() < 0.2


def test_no_two_tensors_share_memory():
    config = small_model()
    plan = plan_growth(config, *expansions.add_layers(config, [1]), new_layers="copied")
    weights = with_random_weights(config, 0)
    new = dict(plan.weights(weights))
    pointers = [weight.data_ptr() for weight in (*weights.values(), *new.values())]
    assert len(set(pointers)) == len(pointers)


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


@pytest.mark.parametrize("fresh", [None, Constant(1e3)])
def test_turned_rows_are_as_long_as_their_originals_for_every_input(fresh):
    """Two groups of three rows become nine each; columns grow too, and a third group is drawn."""
    index = [-1, 0, -1, 1, 2, -1, -1, -1, -1]
    rows = AxisMap.of(6, [*index, *(i + 3 if i >= 0 else -1 for i in index), *[-1] * 9])
    plan = TensorPlan("w_q", (rows, AxisMap.appended(4, 5, zero=False)), derived=OrthogonalCopies(3, seed=5))
    old = numbers(6, 4)
    new = plan.grow(old, generator(), fresh)
    x = numbers(5, 7)
    for group in range(2):
        q, original = (new @ x)[9 * group : 9 * group + 9], (new @ x)[[9 * group + i for i in (1, 3, 4)]]
        torch.testing.assert_close(q.square().sum(dim=0), 3 * original.square().sum(dim=0))
    torch.testing.assert_close(plan.shrink(new), old, rtol=0, atol=0)
    assert new[18:].all()
    bias = TensorPlan("b_q", (rows,), derived=OrthogonalCopies(3, seed=5)).grow(old[:, 0], generator())
    torch.testing.assert_close(bias[:18], new[:18, 0], rtol=0, atol=1e-12)


def test_every_turned_copy_is_turned_by_a_matrix_of_its_own():
    """Equal copies would get equal gradients and stay equal."""
    plan = TensorPlan(
        "w_q", (AxisMap.appended(3, 12, zero=False), AxisMap.same(4)), derived=OrthogonalCopies(1, seed=5)
    )
    copies = plan.grow(numbers(3, 4), generator()).view(4, 3, 4)
    assert all((copies[i] != copies[j]).all() for i in range(4) for j in range(i))


@pytest.mark.parametrize("n_copies", [2, 3, 4])
def test_mirrored_copies_differ_and_add_up_to_equal_ones(n_copies):
    index = torch.arange(6).view(3, 2).repeat_interleave(n_copies, dim=0).flatten()
    plan = TensorPlan("w_up", (AxisMap.of(6, index), AxisMap.same(4)), derived=Mirrored(n_copies, 2))
    old = numbers(6, 4)
    copies = plan.grow(old, generator()).view(3, n_copies, 2, 4)
    torch.testing.assert_close(copies.sum(dim=1), n_copies * old.view(3, 2, 4))
    assert all((copies[:, i] != copies[:, j]).all() for i in range(n_copies) for j in range(i))


def test_rows_of_zero_are_revived():
    old = numbers(3, 4)
    old[1] = 0
    plan = TensorPlan("w_o", (AxisMap.same(3), AxisMap.same(4)), derived=Revived(), is_alien=True)
    new = plan.grow(old, generator())
    assert torch.equal(new[[0, 2]], old[[0, 2]])
    assert new[1].all()


def test_parts_of_experts_are_their_columns_times_their_number():
    whole = TensorPlan("w_down", (AxisMap.same(6), AxisMap.same(4)))
    split = Split(whole, n_parts=2, n_experts=3)
    old = numbers(6, 4)
    new = split.grow(old, generator())
    assert new.shape == (12, 2)
    for expert in range(3):
        for part in range(2):
            found = new.view(3, 2, 2, 2)[expert, part]
            assert torch.equal(found, 2 * old.view(3, 2, 4)[expert, :, 2 * part : 2 * part + 2])
    assert torch.equal(split.shrink(new), old)
    assert torch.equal(split.carry(old, 0.5, 0.0), new / 4)


def test_a_plan_tells_the_shapes_of_what_it_makes():
    config = shaped([16, 8, 12])
    plan = plan_growth(config, *expansions.widen_stream(config, 3))
    for name, weight in plan.weights(with_random_weights(config, 0)):
        tensor = plan.tensors[name]
        assert isinstance(tensor, TensorPlan)
        assert tensor.shape == tuple(weight.shape) == tuple(tensor.is_new().shape)


def test_a_shadow_grows_as_its_weights_do() -> None:
    """Old entries are those of the shadow, new ones those of the grown weights; of cut experts times their number."""
    mixture = config("x", ffn={"kind": "moe", "n_experts": 3, "top_k": 1, "d_expert": 6})
    for old, (wanted, layers) in (
        (config("x"), expansions.widen_stream(config("x"), 6)),
        (mixture, expansions.split_experts(mixture, [1], 3)),
    ):
        plan = plan_growth(old, wanted, layers)
        weights, shadow = ({name: p.detach() for name, p in decoder(old, seed).named_parameters()} for seed in (1, 2))
        grown = dict(plan.weights(weights, seed=3))
        followed = dict(plan.shadow(shadow, grown))
        back, is_new = plan.shrunk(followed), plan.is_new()
        assert all(torch.allclose(back[name], tensor, rtol=1e-14) for name, tensor in shadow.items())
        assert all(torch.equal(followed[name][is_new[name]], grown[name][is_new[name]]) for name in grown)
