"""Several expansions in random order: the function stays, its gradients stay, and everything new learns."""

import random
from functools import partial

import expansions as e
import pytest
import torch
from growth_cases import (
    BIASED,
    DYNAMIC,
    GQA,
    HOURGLASS,
    MOE,
    NARROW,
    SLOTS,
    Grown,
    check_alive,
    check_exact,
    small_model,
    tokens_for,
    with_random_weights,
)

pytestmark = pytest.mark.usefixtures("float64")
LAYERS_AND_UNITS = [
    lambda m: e.add_layers(m, [1]),
    lambda m: e.widen_ffn(m, [0], max(m.layers[0].ffn.hidden_widths) + 3),
]
STREAM = lambda m: e.widen_stream(m, 2)  # noqa: E731
HEADS = lambda m: e.add_heads(m, [0], 12, 4)  # noqa: E731
COMPOSITIONS = {
    "gqa": (GQA, [*LAYERS_AND_UNITS, STREAM, HEADS, lambda m: e.widen_values(m, [0], 5)]),
    "biased": (BIASED, [*LAYERS_AND_UNITS, STREAM, lambda m: e.widen_keys(m, [0], 6)]),
    "narrow": (NARROW, [*LAYERS_AND_UNITS, STREAM, lambda m: e.widen_layers(m, {0: m.layers[0].d_model + 4})]),
    "upcycled": ({}, [LAYERS_AND_UNITS[0], lambda m: e.to_slots(m, 2, 8), lambda m: e.upcycle(m, [0], 3, 2)]),
    "moe": (MOE, [*LAYERS_AND_UNITS, lambda m: e.duplicate_experts(m, [0], 2), lambda m: e.widen_stream(m, 3)]),
    "dynamic": (DYNAMIC, [*LAYERS_AND_UNITS, LAYERS_AND_UNITS[1], STREAM]),
    "hourglass": (HOURGLASS, [*LAYERS_AND_UNITS, STREAM, lambda m: e.add_block(m, 0)]),
    "slots": (SLOTS, [*LAYERS_AND_UNITS, lambda m: e.add_slots(m, 6), lambda m: e.widen_stream(m, m.d_model // 4)]),
}
"""A model, and expansions that can follow each other in any order."""


def composed(name: str, seed: int) -> Grown:
    base, operations = COMPOSITIONS[name]
    grown = Grown(small_model(**base))
    for expand in random.Random(seed).sample(operations, len(operations)):
        grown.grow(expand(grown.now))
    return grown


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_compositions_keep_logits_losses_and_gradients_and_all_that_is_new_learns(name: str) -> None:
    """The growths follow each other without a step in between, so that learning may take three steps, not two."""
    for seed in (1, 2):
        grown = composed(name, seed)
        weights = with_random_weights(grown.config, seed)
        tokens = tokens_for(seed, batch=4)
        values = check_exact(grown.config, grown.now, weights, partial(grown.weights, seed=seed), tokens, name)
        check_alive(grown.now, values, grown.is_new(), tokens, 3, name)


def test_growth_follows_from_the_seed_alone() -> None:
    grown = composed("gqa", 1)
    weights = with_random_weights(grown.config, 1)
    first, again, other = (grown.weights(weights, seed) for seed in (1, 1, 1000))
    assert all(torch.equal(weight, again[name]) for name, weight in first.items())
    is_new = grown.is_new()
    assert all(is_new[name].any() for name in first if not torch.equal(first[name], other[name]))
