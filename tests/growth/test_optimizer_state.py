import math

import expansions
import pytest
import torch
from applied_plans import applied, give_state, state_of, step
from model_cases import decoder, random_tokens, variant

from widthwise.growth.bake.baked import bake_plan
from widthwise.growth.optimizer_state import grown_factors, grown_state
from widthwise.growth.plan.model_plan import plan_growth
from widthwise.model.ffn.moe import MoEConfig
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


@pytest.fixture(params=GROWTHS)
def case(request):
    """An old config, a plan."""
    config, expand = GROWTHS[request.param]
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


def test_gradients_of_the_grown_first_moments_are_the_old_ones(case):
    """The old gradient is the pull-back of the new one, so the same must hold of their averages."""
    config, plan = case
    model = decoder(config)
    state = random_state(model)
    found = grown_state(plan, state)
    weights = dict(model.named_parameters())
    pulled = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for name, parts in found.items():
        source = plan.tensors[name].source
        grown = plan.tensor(name, weights, seed=1)
        pulled[source] += torch.autograd.grad(grown, weights[source], parts["exp_avg"])[0]
    for name in weights:
        torch.testing.assert_close(pulled[name], state[name]["exp_avg"], rtol=1e-12, atol=1e-12)


def test_moments_of_old_entries_stay_bit_by_bit_where_nothing_was_scaled_or_copied(case):
    config, plan = case
    state = random_state(decoder(config))
    found = grown_state(plan, state)
    n_checked = 0
    for name, tensor in plan.tensors.items():
        if not tensor.source or tensor.scale != 1 or tensor.n_copies != 1:
            continue
        n_checked += 1
        assert found[name]["step"] == 9.0
        for part in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(tensor.shrink(found[name][part]), state[tensor.source][part]), name
    assert n_checked > len(plan.tensors) / 2


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
    config, expand = GROWTHS[name]
    model = decoder(config)
    plan = plan_growth(config, *expand(config))
    found, expected = grown_state(plan, gathered(model)), gathered(applied(plan, model))
    is_new = plan.is_new()
    for parameter, parts in found.items():
        if plan.tensors[parameter].n_copies > 1 or ("w_q" in parameter and name == "keys"):
            continue  # a router of the parts; queries, of which those behind a norm have turned copies
        old = ~is_new[parameter]
        for part in ("exp_avg", "exp_avg_sq"):
            size = expected[parameter][part].abs().max().item()
            a, b = parts[part][old], expected[parameter][part][old]
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-11 * size, msg=f"{parameter} {part}")


def test_copies_of_a_key_value_head_have_gradients_that_add_up():
    config, expand = GROWTHS["ungrouped"]
    state = random_state(decoder(config))
    found = grown_state(plan_growth(config, *expand(config)), state)
    for name in ("layers.0.attention.w_k.weight", "layers.2.attention.w_v.weight"):
        for part in ("exp_avg", "exp_avg_sq"):
            copies = found[name][part].unflatten(0, (5, 2, 2))
            torch.testing.assert_close(copies.sum(dim=1), state[name][part].unflatten(0, (5, 2)))
            assert torch.equal(copies[:, 0], copies[:, 1])


@pytest.mark.parametrize(
    ("name", "parameter", "shape", "dim"),
    [
        ("split", "layers.1.ffn.w_router.weight", (5, 2, 20), 1),
        ("upcycled", "layers.1.ffn.w_gate.weight", (4, 34, 20), 0),
        ("upcycled", "layers.2.ffn.w_down.weight", (4, 20, 34), 0),
    ],
)
def test_copies_that_do_different_work_have_gradients_that_add_up(name, parameter, shape, dim):
    """Routes to the parts of an expert; experts that were one feed-forward and see different tokens."""
    config, expand = GROWTHS[name]
    state = random_state(decoder(config))
    found = grown_state(plan_growth(config, *expand(config)), state)
    for part in ("exp_avg", "exp_avg_sq"):
        copies = found[parameter][part].view(shape)
        torch.testing.assert_close(copies.sum(dim=dim), state[parameter][part])
        assert torch.equal(*copies.unbind(dim=dim)[:2])


def test_new_entries_beside_copies_get_the_mean_square_of_the_copies():
    """Five key-value heads become ten copies, whose squares are halved, and two new ones."""
    config, _ = GROWTHS["ungrouped"]
    state = random_state(decoder(config))
    found = grown_state(plan_growth(config, *expansions.add_heads(config, [0], 12, 12)), state)
    second = found["layers.0.attention.w_k.weight"]["exp_avg_sq"].unflatten(0, (12, 2))
    assert second[10:].unique().numel() == 1
    torch.testing.assert_close(second[10, 0, 0], second[:10].mean())


def test_copies_of_an_expert_have_the_same_share_of_its_gradient():
    config, expand = GROWTHS["duplicated"]
    state = random_state(decoder(config))
    found = grown_state(plan_growth(config, *expand(config)), state)
    for leaf in ("w_router", "w_gate", "w_up", "w_down"):
        name = f"layers.2.ffn.{leaf}.weight"
        first, second = (found[name][part].unflatten(0, (5, 3, -1)) for part in ("exp_avg", "exp_avg_sq"))
        torch.testing.assert_close(first.sum(dim=1), state[name]["exp_avg"].unflatten(0, (5, -1)))
        torch.testing.assert_close(second.sqrt().sum(dim=1), state[name]["exp_avg_sq"].unflatten(0, (5, -1)).sqrt())


def test_down_projections_of_parts_have_an_nth_of_the_gradient():
    config, expand = GROWTHS["split"]
    state = random_state(decoder(config))
    found = grown_state(plan_growth(config, *expand(config)), state)
    name = "layers.1.ffn.w_down.weight"
    d_expert = config.layers[1].ffn.d_expert
    for part, factor in (("exp_avg", 1 / 2), ("exp_avg_sq", 1 / 4)):
        experts = state[name][part].unflatten(0, (5, 20))
        parts = found[name][part].unflatten(0, (5, 2, 20))
        assert parts.shape[-1] == d_expert // 2
        for i in range(2):
            expected = experts[..., i * d_expert // 2 : (i + 1) * d_expert // 2] * factor
            assert torch.equal(parts[:, i], expected)


ALL_OLD = ("layers", "ungrouped", "ungrouped_behind_a_norm", "duplicated", "split", "upcycled")
"""Growths that put nothing new into old tensors."""


@pytest.mark.parametrize("reset", ["none", "new"])
@pytest.mark.parametrize("name", GROWTHS)
def test_new_entries_start_without_momentum_and_with_the_mean_square_or_none(name, reset):
    config, expand = GROWTHS[name]
    plan = plan_growth(config, *expand(config))
    state = random_state(decoder(config))
    n_checked = 0
    for parameter, parts in grown_state(plan, state, reset).items():
        tensor, before = plan.tensors[parameter], state[plan.tensors[parameter].source]
        is_made = tensor.carry(torch.zeros_like(before["exp_avg"]), 1.0, 1.0).bool()
        mean = before["exp_avg_sq"].mean() if reset == "none" else torch.zeros((), dtype=torch.float64)
        assert not parts["exp_avg"][is_made].any()
        torch.testing.assert_close(parts["exp_avg_sq"][is_made], mean.expand(int(is_made.sum())))
        n_checked += int(is_made.sum())
    assert (n_checked == 0) == (name in ALL_OLD)


def test_reset_all_and_new_layers_have_no_state():
    for new_layers in ("drawn", "copied"):
        config, expand = GROWTHS["layers"]
        plan = plan_growth(config, *expand(config), new_layers=new_layers)
        state = random_state(decoder(config))
        assert grown_state(plan, state, "all") == {}
        added = {name for name in plan.tensors if name.startswith(("layers.0.", "layers.3."))}
        assert plan.tensors.keys() - grown_state(plan, state).keys() == added


def overshoot(reset, betas, n_steps):
    """Steps over the rate, of an entry that is new when Adam has long seen one gradient everywhere; one a step."""
    config, expand = GROWTHS["ffn"]
    plan = plan_growth(config, *expand(config))
    name = "layers.1.ffn.w_up.weight"
    state = {name: {"exp_avg": torch.full((34, 20), 0.3), "exp_avg_sq": torch.full((34, 20), 0.09)}}
    state[name]["step"] = torch.tensor(1e6)
    parameter = torch.nn.Parameter(torch.zeros(41, 20))
    optimizer = torch.optim.AdamW([parameter], lr=1.0, betas=betas, eps=1e-30, weight_decay=0.0)
    optimizer.state[parameter].update(grown_state(plan, state, reset)[name])
    steps = []
    for _ in range(n_steps):
        before = parameter.detach().clone()
        parameter.grad = torch.full_like(parameter, 0.3)
        optimizer.step()
        moved = (before - parameter.detach()).double()
        torch.testing.assert_close(moved[:34], torch.ones(34, 20, dtype=torch.float64), rtol=0, atol=1e-3)
        steps.append(moved[34:].mean().item())
    return steps


@pytest.mark.usefixtures("float64")
def test_second_moments_of_zero_overshoot_and_their_mean_does_not():
    """|update| / lr = (1 - b1^t) / sqrt(1 - b2^t) behind a bias correction that is over."""
    steps = overshoot("new", (0.9, 0.999), 600)
    formula = [(1 - 0.9**t) / math.sqrt(1 - 0.999**t) for t in range(1, 601)]
    assert steps == pytest.approx(formula, rel=1e-6)
    assert steps[0] == pytest.approx(3.2, abs=0.05)
    assert max(steps) == pytest.approx(6.6, abs=0.05)
    assert steps.index(max(steps)) + 1 == 12
    assert sum(size > 1.5 for size in steps) == 587
    assert max(overshoot("new", (0.9, 0.95), 100)) == pytest.approx(1.1, abs=0.05)
    calm = overshoot("none", (0.9, 0.999), 100)
    assert calm[0] == pytest.approx(0.1, rel=1e-6)
    assert max(calm) <= 1.0


ADAMW = AdamWConfig(lr=0.004)
OPTIMIZERS = {"adamw": ADAMW, "muon": MuonConfig(lr=0.02, adamw=ADAMW)}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_grown_state_is_one_that_its_optimizer_goes_on_with(case, kind):
    config, plan = case
    model = decoder(config)
    optimizer = OPTIMIZERS[kind].build(model)
    step(model, optimizer, random_tokens(2, 11))
    state = state_of(model, optimizer)
    new = applied(plan, model)
    continued = OPTIMIZERS[kind].build(new)
    given = grown_state(plan, state)
    give_state(new, continued, given)
    step(new, continued, random_tokens(2, 11, seed=1))
    for name, parts in state_of(new, continued).items():
        if "step" in parts:
            assert parts["step"] == (2 if name in given else 1), name
        for value in parts.values():
            assert value.isfinite().all()


def test_matrices_that_become_experts_leave_the_momentum_of_muon_behind():
    config, expand = GROWTHS["upcycled"]
    plan = plan_growth(config, *expand(config))
    model = decoder(config)
    state = {name: {"momentum_buffer": torch.ones_like(p)} for name, p in model.named_parameters() if p.dim() == 2}
    missing = {name for name in plan.tensors if plan.tensors[name].source in state} - grown_state(plan, state).keys()
    matrices = {f"layers.{i}.ffn.{leaf}.weight" for i in (1, 2) for leaf in ("w_gate", "w_up", "w_down")}
    assert missing == matrices | {"embedding.weight", "head.weight"}  # the last two are never Muon's
    assert isinstance(plan.new.layers[1].ffn, MoEConfig)


def test_factors_follow_their_parameters_and_multiply():
    config, expand = GROWTHS["keys"]
    model = decoder(config)
    keys = plan_growth(config, *expand(config))
    baked = bake_plan(keys.new)
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
    split, expand = GROWTHS["split"]
    name = "layers.1.ffn.w_down.weight"
    assert grown_factors(plan_growth(split, *expand(split)), {name: 3.0})[name] == 6.0
    assert model.config == config
