"""Steps that follow from a budget of training FLOPs."""

import pytest
from growing_runs import DYNAMIC, TWICE, UNIFORM
from thinned import in_turn
from tiny_runs import tiny_recipe

from widthwise.config_io import UserError, to_data
from widthwise.experiments.matching import check_matched
from widthwise.recipe.recipe import Recipe


def budgeted(training_flops: float, *overrides: str) -> Recipe:
    return tiny_recipe(*overrides, f"train.steps={{training_flops: {training_flops!r}}}")


@in_turn(
    ("overrides", [(), (TWICE,), (UNIFORM, DYNAMIC, "train.nested={}")]),
    ("training_flops", [3.1e8, 7.7e9]),
)
def test_the_run_spends_the_budget_to_within_half_a_step(overrides: tuple[str, ...], training_flops: float) -> None:
    recipe = budgeted(training_flops, *overrides)
    last_step = recipe.training_flops - recipe.training_flops_until(recipe.train.steps - 1)
    assert abs(recipe.training_flops - training_flops) <= last_step / 2
    whole = tiny_recipe(*overrides)
    assert budgeted(whole.training_flops, *overrides) == whole


def test_a_run_that_grows_and_one_from_scratch_spend_the_same() -> None:
    larger = (
        "model.d_model=24",
        "model.n_layers=5",
        "model.shape.widths=[32, 24, 24, 24, 32]",
        "model.ffn={kind: swiglu, ratio: 6}",
    )
    scratch, grown = budgeted(4e10, *larger), budgeted(4e10, TWICE)
    assert grown.train.steps > scratch.train.steps
    check_matched({"grown": grown}, "scratch", scratch, "training_flops", "")


def test_what_is_said_later_replaces_it_and_it_what_was_said() -> None:
    assert tiny_recipe("train.steps={training_flops: 1e9}", "train.steps=5").train.steps == 5
    assert to_data(budgeted(3e8))["train"]["steps"] == budgeted(3e8).train.steps


def test_a_budget_that_cannot_be_is_refused() -> None:
    refused = {
        "{training_flops: 1e6}": r"got training_flops 1e\+06, which leave no step of the last model",
        "{training_flops: -1}": r"train\.steps\.training_flops: got -1; input should be greater than 0",
        "{flops: 1e9}": r"train\.steps\.flops: unknown key; allowed: training_flops",
    }
    for steps, message in refused.items():
        with pytest.raises(UserError, match=message):
            tiny_recipe(TWICE, f"train.steps={steps}")
