"""Expansions of every kind, composed at random: the function stays, its gradients stay, and everything new learns."""

import random
from collections import Counter
from functools import partial

import pytest
import safetensors.torch
import torch
from growth_cases import (
    changed_anyhow,
    check_alive,
    check_exact,
    difference,
    logits_of,
    random_growth,
    random_model,
    tokens_for,
    with_random_weights,
)
from thinned import hard_but

from widthwise.config_io import UserError
from widthwise.growth.plan import plan_growth
from widthwise.model.config import ModelConfig

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.filterwarnings("ignore:ffn.score ln_mean")]
EMBEDDING_STDS = (0.3, 0.02, 1e-3)


@pytest.mark.parametrize("batch", hard_but([0, 1], range(7)))
def test_compositions_keep_logits_losses_gradients_and_the_way_back_and_all_that_is_new_learns(batch):
    """The growths follow each other without a step in between, so that learning may take three steps, not two."""
    for seed in range(batch * 14, (batch + 1) * 14):
        rng = random.Random(seed)
        grown, names = random_growth(rng, rng.randint(1, 6))
        what = f"seed {seed}: {names}"
        weights = with_random_weights(grown.config, seed, EMBEDDING_STDS[seed // 3 % 3])
        tokens = tokens_for(seed, batch=4)
        values = check_exact(grown.config, grown.now, weights, partial(grown.weights, seed=seed), tokens, what)
        back = grown.shrunk(values)
        assert set(back) == set(weights)
        if not {"duplicate_experts", "split_experts"} & set(names):  # mirrored noise and a product with 1 / n_parts
            assert all(torch.equal(back[name], weight) for name, weight in weights.items()), what
        check_alive(grown.now, values, grown.is_new(), tokens, 3, what)


def test_growth_follows_from_the_seed_and_commutes_with_saving():
    for seed in range(0, 100, 20):
        rng = random.Random(seed)
        grown, _ = random_growth(rng, rng.randint(1, 6))
        weights = with_random_weights(grown.config, seed)
        first, again, other = (grown.weights(weights, s) for s in (seed, seed, seed + 1000))
        loaded = grown.weights(safetensors.torch.load(safetensors.torch.save(weights)), seed)
        assert all(torch.equal(weight, again[name]) for name, weight in first.items())
        assert all(torch.equal(weight, loaded[name]) for name, weight in first.items())
        is_new = grown.is_new()
        assert all(is_new[name].any() for name in first if not torch.equal(first[name], other[name]))


@pytest.mark.hard
def test_all_at_once_is_exact_or_refused():
    """One growth to the config that a composition leads to."""
    outcomes = Counter()
    for seed in range(100, 140):
        rng = random.Random(seed)
        grown, names = random_growth(rng, rng.randint(2, 6))
        outcomes[outcome := _grown_or_refused(grown.config, grown.now, seed)] += 1
        assert outcome != "wrong", f"seed {seed}: {names}"
    assert outcomes["exact"] >= 2 * outcomes["refused"]


@pytest.mark.hard
def test_any_wanted_config_is_exact_or_refused():
    """Sizes and constants changed by no rule: nothing goes wrong silently, and nothing but UserError is raised."""
    outcomes = Counter()
    for seed in range(160):
        rng = random.Random(seed)
        config = random_model(rng)
        wanted = changed_anyhow(rng, config)
        if wanted is not None and wanted != config:
            outcomes[outcome := _grown_or_refused(config, wanted, seed)] += 1
            assert outcome != "wrong", f"seed {seed}"
    assert min(outcomes["exact"], outcomes["refused"]) >= 10


def _grown_or_refused(config: ModelConfig, wanted: ModelConfig, seed: int) -> str:
    try:
        plan = plan_growth(config, wanted)
    except UserError:
        return "refused"
    weights, tokens = with_random_weights(config, seed), tokens_for(seed)[:, :-1]
    before = logits_of(config, weights, tokens)
    after = logits_of(plan.new, dict(plan.weights(weights, seed)), tokens)
    return "exact" if difference(before, after) <= 1e-12 else "wrong"
