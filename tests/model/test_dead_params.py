"""Parameters that can never learn are those whose gradient autograd finds to be 0, whatever the weights."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from model_cases import SEQ_LEN, SLOTS, VARIANTS, WIDTHS, config

from widthwise.model.config import ModelConfig
from widthwise.model.decoder import build


def never_moved(resolved: ModelConfig) -> int:
    """Entries without gradient in a model of random weights, so that nothing is 0 because it starts there."""
    torch.manual_seed(3)
    built = build(resolved, seed=1).double()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.normal_(0.3, 0.5)
    tokens = torch.arange(40 * SEQ_LEN).view(40, -1) ** 2 % 37 % resolved.vocab_size
    built.loss(tokens, tokens.roll(1, 1)).objective.mean().backward()
    return sum(int((each.grad == 0).sum()) for each in built.parameters() if each.grad is not None)


def model(shape: str | list[int], endpoints: str = "slim", **changes: object) -> ModelConfig:
    """Of so few tokens that every row of the embedding is read."""
    attention = {"n_heads": None, "head_dim": 2}
    return config(shape, endpoints, **{"vocab_size": 5, "attention": attention, **changes})


@given(
    widths=st.lists(st.integers(2, 19).map(lambda n: 2 * n), min_size=1, max_size=5),
    endpoints=st.sampled_from(["slim", "full"]),
    resize=st.sampled_from(["carry", "zero", "projection", "full_projection"]),
)
@example(widths=WIDTHS["zigzag"], endpoints="full", resize="carry")
@example(widths=WIDTHS["growing"], endpoints="slim", resize="zero")
@settings(deadline=None, max_examples=20)
def test_counted_as_autograd_finds_them(widths, endpoints, resize):
    resolved = model(widths, endpoints, residual={"kind": "plain", "resize": resize})
    assert resolved.n_dead_params == never_moved(resolved)


@pytest.mark.parametrize("variant", ["gqa", "biases", "layer_norm_reordered", "layer_norm_hourglass", "gemma3"])
def test_other_components(variant):
    for shape in ("zigzag", "narrowing"):
        resolved = model(shape, **VARIANTS[variant])
        assert resolved.n_dead_params == never_moved(resolved)


@pytest.mark.parametrize(
    ("n_dead", "options"),
    [
        (0, {}),
        (0, {"dynamic": False, "embedding": "expand", "reduce": "slot"}),
        # Five slots start empty: 3 coefficients that read them and 10 that carry them at the first site, each with a
        # factor of what follows the state if it does, as the 3 that write to them have.
        (5 * (2 * (3 + 10) + 3), {"embedding": "pad", "reduce": "slot"}),
        (5 * (3 + 10), {"embedding": "pad", "dynamic": False}),
    ],
)
def test_slots_can_learn_to_fill_and_to_hear_all(n_dead, options):
    resolved = model([12, 36, 8, 28], residual={**SLOTS, "n_slots": 10, **options})
    assert resolved.n_dead_params == never_moved(resolved) == n_dead
