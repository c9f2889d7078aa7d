"""Expansions of every kind, composed at random: the function stays, its gradients stay, and everything new learns."""

import random
from collections import Counter
from functools import cache

import pytest
import safetensors.torch
import torch
from growth_cases import (
    OPERATIONS,
    Grown,
    Measured,
    changed_anyhow,
    difference,
    logits_of,
    pulled_back,
    random_growth,
    random_model,
    tokens_for,
    unmoved,
    unreachable,
    with_random_weights,
)

from widthwise.config_io import UserError
from widthwise.growth.maps.correspondence import Correspondence
from widthwise.growth.plan.fresh import Constant
from widthwise.growth.plan.model_plan import plan_growth

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:ffn.score ln_mean"),
]
N_BATCHES, BATCH = 5, 20
EMBEDDING_STDS = (0.3, 0.02, 1e-3)
APPLIED: Counter[str] = Counter()
"""How often each expansion was part of a composition; SEEDS: the compositions."""
SEEDS: set[int] = set()


@cache
def composed(seed: int) -> tuple[Grown, list[str]]:
    rng = random.Random(seed)
    return random_growth(rng, rng.randint(1, 6))


@pytest.mark.parametrize("batch", range(N_BATCHES))
def test_compositions_keep_logits_losses_gradients_and_the_way_back(batch):
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        grown, names = composed(seed)
        what = f"seed {seed}: {names}"
        weights, tokens = with_random_weights(grown.config, seed, EMBEDDING_STDS[seed % 3]), tokens_for(seed)
        leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
        after = grown.weights(leaves, seed)
        values = {name: weight.detach() for name, weight in after.items()}
        old, new = Measured(grown.config, weights, tokens), Measured(grown.now, values, tokens)
        assert difference(old.logits, new.logits) <= 1e-12, what
        assert len(old.further_losses) == len(new.further_losses)
        for losses in zip(old.further_losses, new.further_losses):
            assert difference(*losses) <= 1e-12, what
        largest = max(gradient.abs().max() for gradient in old.gradients.values())
        for name, gradient in pulled_back(leaves, after, new.gradients).items():
            assert (gradient - old.gradients[name]).abs().max() <= 1e-12 * largest, (what, name)
        back = grown.shrunk(values)
        assert set(back) == set(weights)
        if not {"duplicate_experts", "split_experts"} & set(names):  # mirrored noise and a product with 1 / n_parts
            assert all(torch.equal(back[name], weight) for name, weight in weights.items()), what
        APPLIED.update(names)
        SEEDS.add(seed)


def test_compositions_whose_inputs_are_zero_keep_logits_and_gradients_and_learn():
    for seed in range(30):
        rng = random.Random(f"inputs {seed}")
        grown, names = random_growth(rng, rng.randint(1, 6), "inputs")
        what = f"seed {seed}: {names}"
        weights, tokens = with_random_weights(grown.config, seed, EMBEDDING_STDS[seed % 3]), tokens_for(seed, batch=6)
        leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
        after = grown.weights(leaves, seed)
        values = {name: weight.detach() for name, weight in after.items()}
        old, new = Measured(grown.config, weights, tokens), Measured(grown.now, values, tokens)
        assert difference(old.logits, new.logits) <= 1e-12, what
        largest = max(gradient.abs().max() for gradient in old.gradients.values())
        for name, gradient in pulled_back(leaves, after, new.gradients).items():
            assert (gradient - old.gradients[name]).abs().max() <= 1e-12 * largest, (what, name)
        never, cannot = unmoved(grown.now, values, tokens, 3), unreachable(grown.now, values, tokens)
        for name, is_new in grown.is_new().items():
            assert not (never[name] & is_new & ~cannot[name]).any(), (what, name)


def test_compositions_contain_every_expansion_often():
    if len(SEEDS) < N_BATCHES * BATCH:
        pytest.skip("needs all compositions")
    assert {name: n for name in OPERATIONS if (n := APPLIED[name]) < 3} == {}


def test_everything_new_learns_after_three_steps_at_most():
    """The growths follow each other without a step in between; after a single one two steps do (`test_expansions`)."""
    for seed in range(25):
        grown, names = composed(seed)
        weights, tokens = grown.weights(with_random_weights(grown.config, seed), seed), tokens_for(seed, batch=4)
        never, cannot, is_new = unmoved(grown.now, weights, tokens, 3), None, grown.is_new()
        for name, entries in never.items():
            if (entries & is_new[name]).any():
                cannot = cannot or unreachable(grown.now, weights, tokens)
                assert not (entries & is_new[name] & ~cannot[name]).any(), f"seed {seed}: {names}, {name}"


@pytest.mark.parametrize("seed", range(0, 100, 7))
def test_free_entries_may_be_anything(seed):
    grown, names = composed(seed)
    weights, tokens = with_random_weights(grown.config, seed), tokens_for(seed)[:, :-1]
    before = logits_of(grown.config, weights, tokens)
    for plan in grown.plans:
        weights = dict(plan.weights(weights, seed, Constant(1e3)))
    # What a layer norm makes of a mean is 0 up to rounding, and so are sums in another order, times a thousand.
    has_layer_norms = grown.config.final_norm.kind == "layer"
    assert difference(before, logits_of(grown.now, weights, tokens)) <= (1e-8 if has_layer_norms else 1e-11), names


@pytest.mark.parametrize("seed", range(0, 100, 9))
def test_growth_follows_from_the_seed_and_commutes_with_saving(seed):
    grown, _ = composed(seed)
    weights = with_random_weights(grown.config, seed)
    first, again, other = (grown.weights(weights, s) for s in (seed, seed, seed + 1000))
    loaded = grown.weights(safetensors.torch.load(safetensors.torch.save(weights)), seed)
    saved = safetensors.torch.load(safetensors.torch.save(first))
    for name, weight in first.items():
        assert torch.equal(weight, again[name])
        assert torch.equal(weight, loaded[name])
        assert torch.equal(weight, saved[name])
    is_new = grown.is_new()
    assert all(is_new[name].any() for name in first if not torch.equal(first[name], other[name]))


@pytest.mark.parametrize("seed", range(20))
def test_growth_to_the_same_model_changes_no_bit(seed):
    config = random_model(random.Random(seed))
    weights = with_random_weights(config, seed)
    plan = plan_growth(config, config)
    grown = dict(plan.weights(weights, seed))
    assert set(grown) == set(weights)
    assert all(torch.equal(grown[name], weight) for name, weight in weights.items())
    assert not any(entries.any() for entries in plan.is_new().values())
    tokens = tokens_for(seed)[:, :-1]
    assert torch.equal(logits_of(config, weights, tokens), logits_of(plan.new, grown, tokens))


JOINT = Counter()


@pytest.mark.parametrize("batch", range(2))
def test_all_at_once_is_exact_or_refused(batch):
    """One growth to the config that a composition leads to."""
    for seed in range(100 + batch * 20, 100 + (batch + 1) * 20):
        grown, names = composed(seed)
        outcome = _grown_or_refused(grown.config, grown.now, grown.correspondence(), seed)
        assert outcome != "wrong", f"seed {seed}: {names}"
        JOINT[outcome] += 1
    assert JOINT["exact"] >= 4 * JOINT["refused"]


@pytest.mark.parametrize("batch", range(2))
def test_any_wanted_config_is_exact_or_refused(batch):
    """Sizes and constants changed by no rule: nothing goes wrong silently, and nothing but UserError is raised."""
    outcomes = Counter()
    for seed in range(batch * 80, (batch + 1) * 80):
        rng = random.Random(seed)
        config = random_model(rng)
        wanted = changed_anyhow(rng, config)
        if wanted is not None and wanted != config:
            outcome = _grown_or_refused(config, wanted, None, seed)
            assert outcome != "wrong", f"seed {seed}"
            outcomes[outcome] += 1
    assert min(outcomes["exact"], outcomes["refused"]) >= 5


def _grown_or_refused(config, wanted, correspondence: Correspondence | None, seed: int) -> str:
    try:
        plan = plan_growth(config, wanted, correspondence)
    except UserError:
        return "refused"
    weights, tokens = with_random_weights(config, seed), tokens_for(seed)[:, :-1]
    before = logits_of(config, weights, tokens)
    after = logits_of(plan.new, dict(plan.weights(weights, seed)), tokens)
    return "exact" if difference(before, after) <= 1e-12 else "wrong"
