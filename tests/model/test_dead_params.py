"""Dead parameters are the parameters whose gradient is 0 for any weights."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from model_cases import SEQ_LEN, SLOTS, VARIANTS, WIDTHS, config

from widthwise.model.config import ModelConfig
from widthwise.model.decoder import build


def n_without_gradient(resolved: ModelConfig) -> int:
    """Return the number of parameters without gradient in a model whose weights are all random, so that none is 0."""
    torch.manual_seed(3)
    built = build(resolved, seed=1).double()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.normal_(0.3, 0.5)
    tokens = torch.arange(40 * SEQ_LEN).view(40, -1) ** 2 % 37 % resolved.vocab_size
    built.loss(tokens, tokens.roll(1, 1)).objective.mean().backward()
    gradients = [parameter.grad for parameter in built.parameters() if parameter.grad is not None]
    return sum(int((gradient == 0).sum()) for gradient in gradients)


def model(shape: str | list[int], endpoints: str = "slim", **changes: object) -> ModelConfig:
    """Return a config with a vocabulary so small that every row of the embedding is read."""
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
def test_dead_parameters_have_no_gradient(widths, endpoints, resize):
    resolved = model(widths, endpoints, residual={"kind": "plain", "resize": resize})
    assert resolved.n_dead_params == n_without_gradient(resolved)


@pytest.mark.parametrize("variant", ["gqa", "biases", "layer_norm_reordered", "layer_norm_hourglass", "gemma3"])
def test_dead_parameters_have_no_gradient_with_other_components(variant):
    for shape in ("zigzag", "narrowing"):
        resolved = model(shape, **VARIANTS[variant])
        assert resolved.n_dead_params == n_without_gradient(resolved)


@pytest.mark.parametrize(
    ("n_dead", "options"),
    [
        (0, {}),
        (0, {"dynamic": False, "embedding": "expand", "reduce": "slot"}),
        # Five slots start empty. At the first site each has 3 coefficients of reads and 10 of carries, and if they are
        # dynamic a scale for each, and for the 3 of writes.
        (5 * (2 * (3 + 10) + 3), {"embedding": "pad", "reduce": "slot"}),
        (5 * (3 + 10), {"embedding": "pad", "dynamic": False}),
    ],
)
def test_with_slots_only_coefficients_of_empty_slots_are_dead(n_dead, options):
    resolved = model([12, 36, 8, 28], residual={**SLOTS, "n_slots": 10, **options})
    assert resolved.n_dead_params == n_without_gradient(resolved) == n_dead
