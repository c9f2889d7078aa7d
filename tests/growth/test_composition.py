"""Several expansions in random order: the function stays, its gradients stay, and everything new learns."""

import random
from collections.abc import Iterator

import expansions as e
import growth_cases as cases
import pytest
import torch
from growth_cases import Weights, check, small_model, with_random_weights

from widthwise.growth import certificate
from widthwise.growth.plan import GrowthPlan, plan_growth

pytestmark = pytest.mark.usefixtures("float64")
LAYERS_AND_UNITS = [
    lambda m: e.add_layers(m, [1]),
    lambda m: e.widen_ffn(m, [0], max(m.layers[0].ffn.hidden_widths) + 3),
]
STREAM = lambda m: e.widen_stream(m, 2)  # noqa: E731
HEADS = lambda m: e.add_heads(m, [0], 12, 4)  # noqa: E731
COMPOSITIONS = {
    "gqa": (cases.GQA, [*LAYERS_AND_UNITS, STREAM, HEADS, lambda m: e.widen_values(m, [0], 5)]),
    "biased": (cases.BIASED, [*LAYERS_AND_UNITS, STREAM, lambda m: e.widen_keys(m, [0], 6)]),
    "narrow": (cases.NARROW, [*LAYERS_AND_UNITS, STREAM, lambda m: e.widen_layers(m, {0: m.layers[0].d_model + 4})]),
    "upcycled": ({}, [LAYERS_AND_UNITS[0], lambda m: e.to_slots(m, 2, 8), lambda m: e.upcycle(m, [0], 3, 2)]),
    "moe": (cases.MOE, [*LAYERS_AND_UNITS, lambda m: e.duplicate_experts(m, [0], 2), lambda m: e.widen_stream(m, 3)]),
    "dynamic": (cases.DYNAMIC, [*LAYERS_AND_UNITS, LAYERS_AND_UNITS[1], STREAM]),
    "hourglass": (cases.HOURGLASS, [*LAYERS_AND_UNITS, STREAM, lambda m: e.add_block(m, 0)]),
    "slots": (
        cases.SLOTS,
        [*LAYERS_AND_UNITS, lambda m: e.add_slots(m, 6), lambda m: e.widen_stream(m, m.d_model // 4)],
    ),
}
"""A model, and expansions that can follow each other in any order."""


def composed(name: str, seed: int) -> Iterator[tuple[GrowthPlan, Weights, Weights]]:
    """Plan, old weights and grown weights of each growth."""
    base, operations = COMPOSITIONS[name]
    config = small_model(**base)
    weights = with_random_weights(config, seed)
    for expand in random.Random(seed).sample(operations, len(operations)):
        plan = plan_growth(config, *expand(config))
        grown = dict(plan.weights(weights, seed))
        yield plan, weights, grown
        config, weights = plan.new, grown


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_compositions_keep_logits_and_gradients_and_all_that_is_new_learns(name: str, monkeypatch) -> None:
    """The growths follow each other without a step in between, so that learning may take three steps, not two."""
    monkeypatch.setattr(certificate, "N_STEPS", 3)
    for seed in (1, 2):
        for plan, weights, _ in composed(name, seed):
            check(plan, weights, seed=seed)


def test_growth_follows_from_the_seed_alone() -> None:
    for plan, weights, grown in composed("gqa", 1):
        again, other = (dict(plan.weights(weights, seed)) for seed in (1, 1000))
        assert all(torch.equal(weight, again[name]) for name, weight in grown.items())
        is_new = plan.is_new()
        assert all(is_new[name].any() for name in grown if not torch.equal(grown[name], other[name]))
