"""What a search can grow: each part alone and with others."""

from typing import Any

import numpy as np
import pytest
import torch
from thinned import hard_but
from tiny_runs import TINY

from widthwise.config_io import parse
from widthwise.experiments.growing import GrowingMethod, GrowingSearch, parts_of
from widthwise.growth.certificate import first_order_gains
from widthwise.growth.plan import plan_growth
from widthwise.model.decoder import build
from widthwise.recipe.recipe import Recipe
from widthwise.shape.kinds import ExplicitShape

MODEL: dict[str, Any] = {
    "vocab_size": 61,
    "d_model": 20,
    "n_layers": 3,
    "attention": {"head_dim": 4},
    "ffn": {"kind": "hourglass", "ratio": 0.7, "n_blocks": 2},
    "norm": {"scaling": "depth"},
}
RECIPE = parse(Recipe, {**TINY, "model": MODEL, "train": {"steps": 8, "batch_size": 2}}, "recipe")
SEARCH = GrowingSearch(GrowingMethod(), RECIPE, 8, "params")
WIDTHS = (12, 20, 8)
START = SEARCH.template.model_copy(update={"shape": ExplicitShape(widths=WIDTHS)}).resolve(RECIPE.seq_len)
PART = parts_of(SEARCH.template, 0.3)


def weights(seed: int = 1) -> dict[str, torch.Tensor]:
    """Of a model that has left its initialisation."""
    generator = torch.Generator().manual_seed(seed)
    old = build(START, seed=0).named_parameters()
    return {name: weight.detach() + 0.1 * torch.randn(weight.shape, generator=generator) for name, weight in old}


def tokens(seed: int) -> torch.Tensor:
    return torch.randint(61, (2, 14), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", PART)
def test_gains_measured_at_once_are_those_measured_alone(name):
    part = PART[name]
    batches, places = [tokens(seed) for seed in (1, 1, 2, 2)], part.places(START)
    together = part.grown_at(START, places)
    at_once = first_order_gains(plan_growth(START, together), weights(), batches, seed=7)
    for place in places:
        alone = part.grown_at(START, [place])
        gains = first_order_gains(plan_growth(START, alone), weights(), batches, seed=7)
        wanted, found = (
            {name: float(gain.sum()) for name, gain in each.items() if name.startswith(f"layers.{place}.")}
            for each in (gains, at_once)
        )
        assert len(wanted) == len(gains) > 0  # nothing is grown anywhere else
        assert found == pytest.approx(wanted, rel=1e-3)
        assert sum(wanted.values()) > 0


@pytest.mark.parametrize("name", hard_but(["width", "attention"], PART))
def test_each_of_several_steps_at_once_has_the_gain_of_a_step_alone(name):
    """On average over seeds: each draws other weights."""
    part = PART[name]
    batches, n_draws, seeds = [tokens(seed) for seed in (1, 1)], 3, range(8)
    place = part.places(START)[0]

    def draws(n_steps: int, seed: int) -> list[float]:
        grown = part.grown_at(START, [place] * n_steps)
        return part.draws(first_order_gains(plan_growth(START, grown), weights(), batches, seed), place, n_steps)

    alone = [gain for seed in seeds for gain in draws(1, seed)]
    assert (len(set(alone)) > 1) == part.is_drawn  # otherwise seeds make no difference
    if part.is_drawn:
        at_once = np.array([draws(n_draws, seed) for seed in seeds])
        assert at_once.shape == (len(seeds), n_draws)
        for own in at_once.T:
            error = np.hypot(own.std(), np.std(alone)) / len(seeds) ** 0.5
            assert abs(own.mean() - np.mean(alone)) < 4 * error


@pytest.mark.parametrize("name", ["width", "attention", "hidden"])
def test_the_smallest_step_is_one_that_can_be_taken(name):
    grown = parts_of(SEARCH.template, 1e-6)[name].grown(START, 0)
    assert SEARCH.cost(grown) > SEARCH.cost(START)
