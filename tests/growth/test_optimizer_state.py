"""What an optimizer has gathered, as a grown model would have gathered it."""

import math

import expansions
import pytest
import torch
from growth_cases import applied, drawn, planned, step, tokens_for
from model_cases import variant
from thinned import in_turn

from widthwise.growth.bake import bake_plan
from widthwise.growth.plan import grown_factors, grown_states, plan_growth
from widthwise.recipe.optimizer import AdamWConfig, MuonConfig
from widthwise.training.growth_step import set_optimizer_state, state_by_name

GROWTHS = (
    *("units", "groups", "keys_behind_norms", "values", "stream_tied", "stream_of_layer_norms", "narrow_layer"),
    *("layers", "slots", "divided_groups", "divided_groups_under_one_norm"),
    *("more_experts", "narrower_experts", "experts_of_a_dense_layer"),
)


def random_state(model):
    """The state of AdamW after nine steps."""
    state = {}
    for name, parameter in model.named_parameters():
        moments = {"exp_avg": torch.randn_like(parameter), "exp_avg_sq": torch.rand_like(parameter) + 0.1}
        state[name] = {**moments, "step": torch.tensor(9.0)}
    return state


ALL_OLD = ("layers", *GROWTHS[-5:])
"""Growths that put nothing new into old tensors."""


@pytest.mark.parametrize("name", GROWTHS)
def test_moments_of_old_entries_stay_and_new_entries_start_without_momentum(name):
    """The old gradient is the pull-back of the new one, so the same must hold of their averages. Where nothing was
    scaled or copied, old entries stay bit by bit; new ones have the mean square.
    """
    plan = planned(name)
    model = drawn(plan.old)
    state, weights = random_state(model), dict(model.named_parameters())
    pulled = {parameter: torch.zeros_like(weight) for parameter, weight in weights.items()}
    n_checked = n_made = 0
    for parameter, parts in grown_states(plan, state):
        tensor, before = plan.tensors[parameter], state[plan.tensors[parameter].source]
        weight, grown = weights[tensor.source], tensor.grow(weights[tensor.source], torch.Generator())
        pulled[tensor.source] += torch.autograd.grad(grown, weight, parts["exp_avg"])[0]
        if tensor.scale == 1 and tensor.n_copies == 1:
            n_checked += 1
            assert parts["step"] == 9.0
            for part in ("exp_avg", "exp_avg_sq"):
                carried = parts[part][~tensor.is_new()]
                assert torch.equal(carried.sort().values, before[part].flatten().sort().values), parameter
        is_made = tensor.carry(torch.zeros_like(before["exp_avg"]), 1.0, 1.0).bool()
        assert not parts["exp_avg"][is_made].any()
        squares = parts["exp_avg_sq"][is_made]
        torch.testing.assert_close(squares, before["exp_avg_sq"].mean().expand_as(squares))
        n_made += len(squares)
    for parameter, gradient in pulled.items():
        torch.testing.assert_close(gradient, state[parameter]["exp_avg"], rtol=1e-12, atol=1e-12)
    assert n_checked > len(plan.tensors) / 2
    assert (n_made == 0) == (name in ALL_OLD)


@pytest.mark.parametrize(
    ("name", "parameter", "shape", "dim"),
    [
        ("divided_groups", "layers.0.attention.w_k.weight", (2, 3, 2, 12), 1),
        ("narrower_experts", "layers.0.ffn.w_router.weight", (3, 2, 12), 1),
        ("experts_of_a_dense_layer", "layers.1.ffn.w_down.weight", (3, 12, 10), 0),
    ],
)
def test_copies_have_gradients_that_add_up(name, parameter, shape, dim):
    """Of a key-value head; routes to the parts of an expert; experts that were one and see different tokens."""
    plan = planned(name)
    state = random_state(drawn(plan.old))
    found = dict(grown_states(plan, state))
    for part in ("exp_avg", "exp_avg_sq"):
        copies = found[parameter][part].view(shape)
        before = state[parameter][part]
        torch.testing.assert_close(copies.sum(dim=dim), before.view(copies.sum(dim=dim).shape))
        assert torch.equal(*copies.unbind(dim=dim)[:2])


ADAMW = AdamWConfig(lr=0.004)
OPTIMIZERS = {"adamw": ADAMW, "muon": MuonConfig(lr=0.02, adamw=ADAMW)}


@in_turn(("name", ["keys_behind_norms", "slots", *ALL_OLD]), ("kind", OPTIMIZERS))
def test_a_grown_state_is_one_that_its_optimizer_goes_on_with(name, kind):
    plan = planned(name)
    model = drawn(plan.old)
    optimizer = OPTIMIZERS[kind].build(model)
    step(model, optimizer, tokens_for(0))
    new = applied(plan, model)
    continued = OPTIMIZERS[kind].build(new)
    given = dict(grown_states(plan, state_by_name(model, optimizer)))
    set_optimizer_state(continued, new, given.items())
    step(new, continued, tokens_for(1))
    for name, parts in state_by_name(new, continued).items():
        if "step" in parts:
            assert parts["step"] == (2 if name in given else 1), name
        assert all(value.isfinite().all() for value in parts.values()), name


def test_factors_follow_their_parameters_and_multiply():
    config = variant("uniform", "biases")
    baked = bake_plan(plan_growth(config, *expansions.widen_keys(config, [0, 2], 20)).new)
    first = grown_factors(baked, {})
    expected = {}
    for i in range(5):  # the recipe divides queries of 10 coordinates by 3, which become 20 and 6 in two layers
        queries = {"w_q": math.sqrt(10 / 3), "w_q.bias": math.sqrt(10 / 3), "q_norm": math.sqrt(3 / 10)}
        scores = {"w_k": math.sqrt(2), "w_k.bias": math.sqrt(2)} if i in (0, 2) else {}
        expected |= {f"layers.{i}.attention.{leaf}.weight": c for leaf, c in (queries | scores).items()}
    assert first == pytest.approx(expected)
    layers = plan_growth(baked.new, *expansions.add_layers(baked.new, [1]))
    moved = grown_factors(layers, first)
    assert moved["layers.3.attention.w_k.weight"] == first["layers.2.attention.w_k.weight"]
    assert "layers.1.attention.w_q.weight" not in moved
    assert len(moved) == len(first)
    name = "layers.0.ffn.w_down.weight"
    assert grown_factors(planned("narrower_experts"), {name: 3.0})[name] == 6.0
