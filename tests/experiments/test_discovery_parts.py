"""What a search can grow: each part alone and with others."""

import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from thinned import hard_but
from tiny_runs import TINY

from widthwise.config_io import parse
from widthwise.experiments.growing import Task
from widthwise.experiments.growing_parts import GrownModel, parts_of, sizes_of
from widthwise.growth.certificate import first_order_gains
from widthwise.growth.correspondence import Correspondence
from widthwise.growth.plan import GrowthPlan, plan_growth
from widthwise.growth.tensor_plan import InitialValues
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
RECIPE = parse(Recipe, {**TINY, "model": MODEL, "train": {"steps": 2, "batch_size": 2}}, "recipe")
TASK = Task(RECIPE, 2, "params")
WIDTHS = (12, 20, 8)
START = GrownModel.ungrown(
    TASK.template.model_copy(update={"shape": ExplicitShape(widths=WIDTHS)}).resolve(RECIPE.seq_len)
)


PART = parts_of(TASK.template, 0.3)


def weights(seed: int = 1) -> dict[str, torch.Tensor]:
    """Of a model that has left its initialisation."""
    generator = torch.Generator().manual_seed(seed)
    old = build(START.model, seed=0).named_parameters()
    return {name: weight.detach() + 0.1 * torch.randn(weight.shape, generator=generator) for name, weight in old}


def tokens(seed: int) -> torch.Tensor:
    return torch.randint(61, (2, 14), generator=torch.Generator().manual_seed(seed))


def planned(grown: GrownModel) -> GrowthPlan:
    """A growth in which the weights of an added layer follow from its gap, wherever it then stands."""
    plan = plan_growth(START.model, grown.model, Correspondence(grown.sources))
    tensors = dict(plan.tensors)
    for name, tensor in plan.tensors.items():
        if name.startswith("layers.") and not tensor.source:
            _, index, inside = name.split(".", 2)
            gap = sum(source is not None for source in grown.sources[: int(index)])
            if grown.sources[int(index)] is None:
                tensors[name] = replace(tensor, fresh=InitialValues(drawn_for(f"{gap} {inside}", tensor.shape)))
    return replace(plan, tensors=tensors)


def drawn_for(name: str, shape: tuple[int, ...]):
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return lambda _: torch.empty(shape).normal_(0, 0.3, generator=generator)


@pytest.mark.parametrize("name", PART)
def test_gains_measured_at_once_are_those_measured_alone(name):
    part = PART[name]
    batches, places = [tokens(seed) for seed in (1, 1, 2, 2)], part.places(START.model)
    together = part.grown_at(START, places)
    at_once = first_order_gains(planned(together), weights(), batches, seed=7)
    for place in places:
        alone = part.grown_at(START, [place])
        gains = first_order_gains(planned(alone), weights(), batches, seed=7)
        wanted, found = (
            {
                name.split(".", 2)[2]: float(gain.sum())
                for name, gain in each.items()
                if name.startswith(f"layers.{part.layers_of(model, place, 1)[0]}.")
            }
            for each, model in ((gains, alone), (at_once, together))
        )
        assert len(wanted) == len(gains) > 0  # nothing is grown anywhere else
        assert found == pytest.approx(wanted, rel=1e-3)
        assert sum(wanted.values()) > 0


@pytest.mark.parametrize("name", hard_but(["width", "attention"], PART))
def test_each_of_several_steps_at_once_has_the_gain_of_a_step_alone(name):
    """On average over seeds: each draws other weights."""
    part = PART[name]
    batches, n_draws, seeds = [tokens(seed) for seed in (1, 1)], 3, range(8)
    place = part.places(START.model)[0]

    def draws(n_steps: int, seed: int) -> list[float]:
        grown = part.grown_at(START, [place] * n_steps)
        plan = plan_growth(START.model, grown.model, Correspondence(grown.sources))
        return part.draws(first_order_gains(plan, weights(), batches, seed), grown, place, n_steps)

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
    grown = parts_of(TASK.template, 1e-6)[name].grown(START, 0)
    assert grown is not None
    assert TASK.cost(grown.model) > TASK.cost(START.model)


def test_a_layer_comes_before_the_one_its_gap_is_named_after_and_is_as_large_as_the_one_before_it():
    part = PART["layer"]
    assert part.places(START.model) == [0, 1, 2, 3]
    for place, widths in enumerate([(12, 12, 20, 8), (12, 12, 20, 8), (12, 20, 20, 8), (12, 20, 8, 8)]):
        grown = part.grown(START, place)
        assert grown is not None
        assert tuple(grown.model.widths) == widths
        assert grown.sources == (*range(place), None, *range(place, 3))
        added = grown.model.layers[part.layers_of(grown, place, 1)[0]]
        assert sizes_of(added) == sizes_of(START.model.layers[max(0, place - 1)])
        near = max(1, place)  # whose factor it has, so that it does not depend on how many others are added
        assert added.attention_norm == added.ffn_norm == TASK.template.norm.over(added.d_model, near)
        assert grown.index(place) == place + 1
