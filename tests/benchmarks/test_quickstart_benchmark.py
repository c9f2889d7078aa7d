import json

import pytest
import quickstart
import torch
from step_shares import recipe_of
from workloads import random_batch

from widthwise.model.decoder import build


def test_the_quickstarts_models_take_a_step_and_are_held_to_their_flops(monkeypatch):
    def smaller(variant, times, precision):
        recipe = recipe_of(variant, times, precision)
        train = recipe.train.model_copy(update={"batch_size": 1})
        return recipe.model_copy(update={"seq_len": 32, "train": train})

    report = quickstart.quickstart(1, "bf16", n_rounds=1, recipe=smaller)
    variants = report["variants"]
    for name, factor in quickstart.OVER_FLOPS.items():
        flops = [smaller(each, 1, "bf16").phases[0].model.cost().forward_flops(32) for each in (name, "uniform")]
        assert variants[name]["target"] == pytest.approx(factor * flops[0] / flops[1])
    assert variants["dynamic"]["target"] == quickstart.DYNAMIC_TARGET
    json.dumps(report)


def test_widths_are_spent_as_asked_and_differ_between_tokens():
    recipe = recipe_of("dynamic", 1, "fp32")
    model = build(recipe.phases[0].model, seed=0)
    quickstart.spend(model, 0.6)
    with torch.no_grad():
        choices = model.loss(*random_batch(2048, 2, 33)).choices
    found = torch.stack([chosen["width_fraction"] for chosen in choices])
    assert float(found.mean()) == pytest.approx(0.6, abs=0.03)
    assert float(found.std()) > 0.02
