"""Expansions of a random model: exact here, as printed only without eps, and never when copied."""

import pytest
from papers.demonstration import Expansion, planned_expansions
from papers.item import read_item

from widthwise.recipe.recipe import load_recipe

SMALL = read_item("expansions_table_1").small
WIDER = ("hidden_expansion", "all_at_once")
"""The expansions that change what norms divide by."""
EXACT = 1e-12

pytestmark = pytest.mark.hard


def quantities(row: str, *overrides: str) -> dict[str, float]:
    plans = planned_expansions(load_recipe(SMALL.path, overrides), {row: SMALL.expansions[row]})
    return Expansion(*plans[row], seed=5).quantities(lr=1e-3)


@pytest.mark.parametrize("row", SMALL.expansions)
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
