"""Expansions of a random model: exact here, as printed only without eps, and never when copied."""

import math

import pytest
from papers.demonstration import Expansion, as_printed, drawn_weights, planned_expansions
from papers.item import read_item
from papers.work import DemonstrationWork

from widthwise.config_io import parse
from widthwise.growth.plan import GrowthPlan
from widthwise.model.config import ModelConfig
from widthwise.recipe.recipe import load_recipe
from widthwise.records.record import finite
from widthwise.training.observer import SilentObserver

SMALL = read_item("expansions_table_1").small
RECIPE, EXPANSIONS = SMALL.path, SMALL.expansions
WIDER = ("hidden_expansion", "all_at_once")
"""The expansions that change what norms divide by."""
EXACT = 1e-12

pytestmark = pytest.mark.hard


def plans(*rows: str, overrides: tuple[str, ...] = ()) -> list[tuple[GrowthPlan, ModelConfig]]:
    recipe = load_recipe(RECIPE, overrides)
    return list(planned_expansions(recipe, {row: EXPANSIONS[row] for row in rows}).values())


def quantities(row: str, *overrides: str) -> dict[str, float]:
    (own,) = plans(row, overrides=overrides)
    return Expansion(*own, seed=5).quantities(lr=1e-3)


@pytest.mark.parametrize("row", EXPANSIONS)
def test_an_expansion_is_exact_and_a_copy_is_not(row):
    found = quantities(row)
    assert found["change_of_logits"] <= EXACT
    assert found["change_of_logits_in_usual_form"] <= EXACT
    assert found["change_of_gradients"] <= 1e-10
    assert found["change_of_logits_when_copied"] > 1e-4
    assert (found["change_of_logits_as_printed"] > 1e-6) == (row in WIDER)
    assert found["share_that_learns"] > 0.95
    assert (found["share_that_learns_as_printed"] < 0.9) == (row in WIDER)


def test_as_printed_is_exact_without_eps_and_off_in_proportion_to_it():
    small, large, without = (
        quantities("hidden_expansion", f"model.norm.eps={eps}")["change_of_logits_as_printed"]
        for eps in (1e-8, 2e-8, 1e-30)
    )
    assert without <= EXACT
    assert large / small == pytest.approx(2.0, rel=1e-3)


def test_as_printed_scales_keys_and_gains_as_the_table_says():
    (attention, _), (hidden, _) = plans("attention_expansion", "hidden_expansion")
    old = drawn_weights(attention.old, 1)
    keys = as_printed(attention, dict(attention.weights(old)))["layers.1.attention.w_k.weight"]
    new = attention.is_new()["layers.1.attention.w_k.weight"]
    assert keys[~new].tolist() == pytest.approx((math.sqrt(9 / 4) * old["layers.1.attention.w_k.weight"]).flatten())
    assert not keys[new].any()
    gains = as_printed(hidden, dict(hidden.weights(old)))
    for name in ("layers.0.attention.norm.weight", "layers.2.ffn.norm.weight"):
        assert gains[name][:12].tolist() == pytest.approx(math.sqrt(12 / 19) * old[name])
        assert not gains[name][12:].any()


def test_it_is_stored_and_found_again(tmp_path):
    expansions = {row: EXPANSIONS[row] for row in ("mlp_expansion", "hidden_expansion")}
    data = {"recipe": "expansions_table_1", "expansions": expansions, "seeds": [3, 4]}
    experiment = parse(DemonstrationWork, data, "item")
    assert experiment.measured(tmp_path) is None
    experiment.run(tmp_path, SilentObserver(), n_jobs=None)
    found = experiment.measured(tmp_path)
    assert found.n_seeds == 2
    change = found.value("hidden_expansion", "change_of_logits_as_printed")
    assert change.per_seed[0] != change.per_seed[1]
    without_eps = found.value("hidden_expansion", "change_of_logits_as_printed_without_eps")
    assert max(finite(each) for each in without_eps.per_seed) <= EXACT
    assert found.value("hidden_expansion", "val_loss") is None
    assert found.params[0] == load_recipe(experiment.path).final_model.cost().params + 3 * 11 * 25
