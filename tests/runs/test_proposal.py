"""What is proposed follows the law, and fits."""

from dataclasses import replace

import pytest

from widthwise.recipe.design import WIDTH_PER_LAYER, Family
from widthwise.runs.plan import Planner
from widthwise.runs.proposal import Proposal, Request, propose
from widthwise.training.devices import Device

SMALL = ("seq_len=512", "model.vocab_size=512", "data.tokenizer=bpe-512")
DEVICE = Device("a device", 10**12, 1e12, mfu=0.5)
REQUEST = Request(DEVICE, 1, days=1, tokens_per_param=20.0, n_params=None)


def proposed(asked: Request, shape: str = "uniform", n_devices: int = 1) -> Proposal:
    return propose(asked, Family(SMALL, {"kind": shape}, n_devices))


def days(proposal: Proposal, asked: Request) -> float:
    return Planner(proposal.recipe, asked.n_devices).run_hours(asked.device, proposal.recipe.train) / 24


@pytest.mark.parametrize("tokens_per_param", [20.0, 5.0])
def test_compute_is_spent_at_the_tokens_of_the_law(tokens_per_param: float) -> None:
    asked = replace(REQUEST, tokens_per_param=tokens_per_param)
    found = proposed(asked)
    model, n_params = found.recipe.final_model, found.recipe.final_model.cost().params
    assert found.recipe.n_tokens / n_params == pytest.approx(tokens_per_param, rel=0.02)
    assert 0.4 < days(found, asked) < 1.02
    assert model.n_layers == pytest.approx(model.d_model / WIDTH_PER_LAYER, abs=0.5)


def test_where_memory_is_the_bound_compute_goes_into_tokens() -> None:
    asked = replace(REQUEST, device=replace(REQUEST.device, memory_bytes=3 * 10**8))
    found = proposed(asked)
    assert found.recipe.final_model.cost().params < proposed(REQUEST).recipe.final_model.cost().params
    assert "that fits into the memory" in found.law
    assert Planner(found.recipe).deployment(asked.device).fits
    assert days(found, asked) > 0.9


def test_a_size_of_ones_own_gets_no_more_tokens_than_the_days_have_compute_for() -> None:
    """Half of the days that the law needs are half of its tokens."""
    asked = replace(REQUEST, days=100, n_params=2e6)
    needed = days(proposed(asked), asked)
    half = proposed(replace(asked, days=needed / 2))
    assert half.recipe.n_tokens == pytest.approx(10 * half.recipe.final_model.cost().params, rel=0.02)
    assert days(half, asked) <= 1.001 * needed / 2


def test_a_device_without_flops_gets_the_largest_model_that_fits() -> None:
    asked = replace(REQUEST, device=Device("memory", 3 * 10**8), days=None)
    found = proposed(asked)
    assert Planner(found.recipe).deployment(asked.device).fits
    assert found.recipe.n_tokens == pytest.approx(20 * found.recipe.final_model.cost().params, rel=0.02)
