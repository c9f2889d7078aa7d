"""Expansions of a random model: exact here, as printed only without eps, and never when copied."""

import math
from pathlib import Path

import pytest

from widthwise.config_io import parse
from widthwise.experiments.papers.demonstrating import Demonstrating
from widthwise.experiments.papers.expanding import Expanding, as_printed, drawn_weights
from widthwise.experiments.papers.item import read_item
from widthwise.records.record import finite
from widthwise.training.observer import Silence

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
ITEM = read_item("expansions_table_1")
WIDER = ("hidden_expansion", "all_at_once")
"""The expansions that change what norms divide by."""
EXACT = 1e-12


def demonstrating(*rows: str, **changes) -> Demonstrating:
    expansions = {row: ITEM.small.expansions[row] for row in rows}
    data = {"recipe": "expansions_table_1", "expansions": expansions, "seeds": [3, 4], **changes}
    return parse(Demonstrating, data, "item")


def quantities(row: str, *overrides: str) -> dict[str, float]:
    ((_, plan, wanted),) = demonstrating(row, overrides=overrides).plans()
    return Expanding(plan, wanted, seed=5, lr=1e-3).quantities()


@pytest.mark.parametrize("row", ITEM.small.expansions)
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
    ((_, attention, _), (_, hidden, _)) = demonstrating("attention_expansion", "hidden_expansion").plans()
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
    experiment = demonstrating("mlp_expansion", "hidden_expansion")
    assert experiment.measured(tmp_path) is None
    experiment.run(tmp_path, Silence(), n_jobs=None)
    found = experiment.measured(tmp_path)
    assert found is not None
    assert found.n_seeds == 2
    change = found.value("hidden_expansion", "change_of_logits_as_printed")
    assert change is not None
    assert change.per_seed[0] != change.per_seed[1]
    without_eps = found.value("hidden_expansion", "change_of_logits_as_printed_without_eps")
    assert without_eps is not None
    assert max(finite(each) for each in without_eps.per_seed) <= EXACT
    assert found.value("hidden_expansion", "val_loss") is None
    assert found.models["mlp_expansion"] == experiment.recipe_of_model.final_model.cost().params + 3 * 11 * 25
