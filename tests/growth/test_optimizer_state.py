"""What an optimizer has gathered, as a grown model would have gathered it."""

import math

import expansions
import pytest
import torch
from applied_plans import applied, give_state, state_of, step
from model_cases import decoder, random_tokens, variant
from thinned import in_turn

from widthwise.growth.bake import bake_plan
from widthwise.growth.plan import grown_factors, grown_states, plan_growth
from widthwise.recipe.optimizer import AdamWConfig, MuonConfig

GROWTHS = {
    "ffn": (variant("uniform", "plain"), lambda c: expansions.widen_ffn(c, [1, 3], 41)),
    "heads": (variant("uniform", "gqa"), lambda c: expansions.add_heads(c, [0, 2], 21, 7)),
    "keys": (variant("uniform", "biases"), lambda c: expansions.widen_keys(c, [0, 2], 20)),
    "values": (variant("uniform", "biases"), lambda c: expansions.widen_values(c, [1], 13)),
    "stream": (variant("x", "tied"), lambda c: expansions.widen_stream(c, 6)),
    "stream_of_layer_norms": (variant("uniform", "gpt2"), lambda c: expansions.widen_stream(c, 6)),
    "narrow_layer": (variant("x", "plain"), lambda c: expansions.widen_layers(c, {2: 16})),
    "layers": (variant("x", "plain"), lambda c: expansions.add_layers(c, [0, 3])),
    "slots": (variant("x", "slots"), lambda c: expansions.add_slots(c, 12)),
    "ungrouped": (variant("uniform", "gqa"), lambda c: expansions.add_heads(c, [0, 2], 10, 10)),
    "ungrouped_behind_a_norm": (
        variant("uniform", "qk_norm_all_heads"),
        lambda c: expansions.add_heads(c, [0, 2], 10, 10),
    ),
    "duplicated": (variant("x", "moe"), lambda c: expansions.duplicate_experts(c, [0, 2], 3)),
    "split": (variant("uniform", "moe"), lambda c: expansions.split_experts(c, [1, 2], 2)),
    "upcycled": (variant("uniform", "plain"), lambda c: expansions.upcycle(c, [1, 2], 4, 2)),
}


def planned(name):
    config, expand = GROWTHS[name]
    return config, plan_growth(config, *expand(config))


def random_state(model, seed=0, n_steps=9.0):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: {
            "exp_avg": torch.randn(parameter.shape, generator=generator, dtype=torch.float64),
            "exp_avg_sq": torch.rand(parameter.shape, generator=generator, dtype=torch.float64) + 0.1,
            "step": torch.tensor(n_steps),
        }
        for name, parameter in model.named_parameters()
    }


ALL_OLD = ("layers", "ungrouped", "ungrouped_behind_a_norm", "duplicated", "split", "upcycled")
"""Growths that put nothing new into old tensors."""


@in_turn(
    ("name", GROWTHS),
    ("reset", ["none", "new"]),
)
def test_moments_of_old_entries_stay_and_new_entries_start_without_momentum(name, reset):
    """The old gradient is the pull-back of the new one, so the same must hold of their averages. Where nothing was
    scaled or copied, old entries stay bit by bit; new ones have the mean square, or none.
    """
    config, plan = planned(name)
    model = decoder(config)
    state, weights = random_state(model), dict(model.named_parameters())
    found = dict(grown_states(plan, state, reset))
    pulled = {parameter: torch.zeros_like(weight) for parameter, weight in weights.items()}
    n_checked = n_made = 0
    for parameter, parts in found.items():
        tensor, before = plan.tensors[parameter], state[plan.tensors[parameter].source]
        weight, grown = weights[tensor.source], tensor.grow(weights[tensor.source], torch.Generator())
        pulled[tensor.source] += torch.autograd.grad(grown, weight, parts["exp_avg"])[0]
        if tensor.scale == 1 and tensor.n_copies == 1:
            n_checked += 1
            assert parts["step"] == 9.0
            for part in ("exp_avg", "exp_avg_sq"):
                assert torch.equal(tensor.shrink(parts[part]), before[part]), parameter
        is_made = tensor.carry(torch.zeros_like(before["exp_avg"]), 1.0, 1.0).bool()
        mean = before["exp_avg_sq"].mean() if reset == "none" else torch.zeros((), dtype=torch.float64)
        assert not parts["exp_avg"][is_made].any()
        torch.testing.assert_close(parts["exp_avg_sq"][is_made], mean.expand(int(is_made.sum())))
        n_made += int(is_made.sum())
    for parameter, gradient in pulled.items():
        torch.testing.assert_close(gradient, state[parameter]["exp_avg"], rtol=1e-12, atol=1e-12)
    assert n_checked > len(plan.tensors) / 2
    assert (n_made == 0) == (name in ALL_OLD)


def gathered(model):
    """The state of AdamW after two batches at rate 0, without auxiliary losses: those of a grown mixture are others."""
    model.eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    for seed in (1, 2):
        step(model, optimizer, random_tokens(2, 11, seed=seed))
    return state_of(model, optimizer)


OWN_GRADIENTS = ("ffn", "heads", "keys", "values", "stream", "narrow_layer", "layers", "slots", "split")


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", OWN_GRADIENTS)
def test_state_of_old_entries_is_what_the_grown_model_would_have_gathered(name):
    """In growths in which no new entry shares the gradient of an old one."""
    config, plan = planned(name)
    model = decoder(config)
    found, expected = dict(grown_states(plan, gathered(model))), gathered(applied(plan, model))
    is_new = plan.is_new()
    for parameter, parts in found.items():
        if plan.tensors[parameter].n_copies > 1 or ("w_q" in parameter and name == "keys"):
            continue  # a router of the parts; queries, of which those behind a norm have turned copies
        old = ~is_new[parameter]
        for part in ("exp_avg", "exp_avg_sq"):
            size = expected[parameter][part].abs().max().item()
            a, b = parts[part][old], expected[parameter][part][old]
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-11 * size, msg=f"{parameter} {part}")


@pytest.mark.parametrize(
    ("name", "parameter", "shape", "dim"),
    [
        ("ungrouped", "layers.0.attention.w_k.weight", (5, 2, 2, 20), 1),
        ("split", "layers.1.ffn.w_router.weight", (5, 2, 20), 1),
        ("upcycled", "layers.2.ffn.w_down.weight", (4, 20, 34), 0),
    ],
)
def test_copies_have_gradients_that_add_up(name, parameter, shape, dim):
    """Of a key-value head; routes to the parts of an expert; experts that were one and see different tokens."""
    config, plan = planned(name)
    state = random_state(decoder(config))
    found = dict(grown_states(plan, state))
    for part in ("exp_avg", "exp_avg_sq"):
        copies = found[parameter][part].view(shape)
        before = state[parameter][part]
        torch.testing.assert_close(copies.sum(dim=dim), before.view(copies.sum(dim=dim).shape))
        assert torch.equal(*copies.unbind(dim=dim)[:2])


ADAMW = AdamWConfig(lr=0.004)
OPTIMIZERS = {"adamw": ADAMW, "muon": MuonConfig(lr=0.02, adamw=ADAMW)}


@in_turn(
    ("name", ["keys", "layers", "ungrouped_behind_a_norm", "duplicated", "upcycled", "slots"]),
    ("kind", OPTIMIZERS),
)
def test_a_grown_state_is_one_that_its_optimizer_goes_on_with(name, kind):
    config, plan = planned(name)
    model = decoder(config)
    optimizer = OPTIMIZERS[kind].build(model)
    step(model, optimizer, random_tokens(2, 11))
    state = state_of(model, optimizer)
    new = applied(plan, model)
    continued = OPTIMIZERS[kind].build(new)
    given = dict(grown_states(plan, state))
    give_state(new, continued, given)
    step(new, continued, random_tokens(2, 11, seed=1))
    for name, parts in state_of(new, continued).items():
        if "step" in parts:
            assert parts["step"] == (2 if name in given else 1), name
        for value in parts.values():
            assert value.isfinite().all()


def test_factors_follow_their_parameters_and_multiply():
    baked = bake_plan(planned("keys")[1].new)
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
    name = "layers.1.ffn.w_down.weight"
    assert grown_factors(planned("split")[1], {name: 3.0})[name] == 6.0
