"""What a recipe says of growth, and the models, rates and costs that follow from it."""

import pickle

import pytest
from boxes import refusal
from growing_runs import DYNAMIC, GROWING, TWICE, UNIFORM
from thinned import hard_but
from tiny_runs import tiny_recipe

from widthwise.config_io import checked_copy, parse
from widthwise.recipe.inspection import inspect_recipe
from widthwise.recipe.recipe import Recipe
from widthwise.yaml_io import parse_yaml, to_yaml


def test_a_growth_comes_after_its_step() -> None:
    recipe = tiny_recipe(TWICE)
    widths = [recipe.model_at(step).widths for step in range(10)]
    assert widths[:5] == [[24, 8, 24]] * 5
    assert widths[5:] == [[32, 24, 24, 24, 32]] * 5
    assert [recipe.model_at(step).layers[0].ffn.hidden_widths for step in (7, 8)] == [(128,), (192,)]
    assert (recipe.explicit_model, recipe.final_model) == (recipe.model_at(0), recipe.model_at(9))


def test_constants_that_widths_would_change_stay_if_the_function_is_to_be_preserved() -> None:
    recipe = tiny_recipe(UNIFORM, "model.attention={n_heads: 2}", "growth=[{at_step: 3, model: {d_model: 32}}]")
    old, new = recipe.explicit_model, recipe.final_model
    assert (old.layers[0].attention.head_dim, new.layers[0].attention.head_dim) == (8, 16)
    assert new.layers[0].attention.scale == old.layers[0].attention.scale == 8**-0.5
    assert (new.layers[0].attention_norm.norm_dim, new.final_norm.norm_dim) == (16, 16)
    growth = "growth=[{at_step: 3, model: {d_model: 32}, preserve: false}]"
    recipe = tiny_recipe(UNIFORM, "model.attention={n_heads: 2}", growth)
    wide = tiny_recipe(UNIFORM, "model.attention={n_heads: 2}", "model.d_model=32").explicit_model
    assert recipe.final_model == wide


@pytest.mark.parametrize("kind", hard_but(("twice", "slots", "experts", "converted", "apart"), GROWING))
def test_the_resolved_recipe_holds_every_model_and_reads_back_as_it_is(kind: str) -> None:
    recipe = tiny_recipe(*GROWING[kind])
    resolved = recipe.resolved()
    again = parse(Recipe, parse_yaml(to_yaml(resolved), "config.yaml"))
    assert again == resolved
    assert again.resolved() == resolved
    assert [event.model for event in again.growth] == [phase.model for phase in recipe.phases[1:]]
    for one, other in zip(recipe.phases[1:], again.phases[1:]):
        plans = one.growth.plan, other.growth.plan
        assert plans[0].correspondence == plans[1].correspondence
        sources = [{name: tensor.source for name, tensor in plan.tensors.items()} for plan in plans]
        assert sources[0] == sources[1]
        assert one.growth.seed(3) == other.growth.seed(3) != one.growth.seed(4)


@pytest.mark.parametrize("kind", ["twice", "experts"])
def test_a_recipe_whose_growths_are_planned_goes_to_another_process(kind: str) -> None:
    """Runs at the same time are sent to processes; the plan of a growth holds functions, which cannot be pickled."""
    recipe = tiny_recipe(*GROWING[kind])
    planned = recipe.phases
    received = pickle.loads(pickle.dumps(recipe))
    assert received == recipe
    assert [phase.model for phase in received.phases] == [phase.model for phase in planned]
    grown = checked_copy(recipe, "recipe", model=recipe.final_model, growth=())
    assert grown.explicit_model == recipe.final_model != recipe.explicit_model
    assert recipe.model_copy(update={"growth": ()}).final_model == recipe.explicit_model


@pytest.mark.parametrize(
    ("events", "message"),
    {
        "{at_step: 9, model: {}}": "growth.0: comes after step 9; must come before the last, 9",
        "{at_step: 4, model: {}}, {at_step: 4, model: {}}": "growth.1: comes after step 4; the event before it",
        "{at_step: 2, model: {d_models: 32}}": "growth.0.model: d_models: unknown key; did you mean 'd_model'",
        "{at_step: 2, model: {tie_embeddings: true}}": "growth.0: tie_embeddings: ",
        "{at_step: 2, model: {}, layers: [0, null, 1]}": "growth.0: layers: got",
        "{at_step: 5, model: {}, rewarmup_steps: 5}": "growth.0: rewarmup_steps: got 5; the run has only 4 more",
        "{at_step: 5, model: {attention: {head_dim: [8, 16]}}}": "growth.0.model: attention.head_dim: got [8, 16]; ",
    }.items(),
)
def test_what_cannot_grow_or_does_not_fit_the_run_is_refused_before_training(events: str, message: str) -> None:
    assert refusal(lambda: tiny_recipe(f"growth=[{events}]").check()).startswith(message)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        ("{kind: adamw, lr: 0.01, betas: [0.9, 0.99]}", 100),
        ("{kind: adamw, lr: 0.01, betas: [0.9, 0.75]}", 10),
        ("{kind: muon, lr: 0.01, momentum: 0.95, adamw: {lr: 0.01, betas: [0.5, 0.8]}}", 20),
    ],
)
def test_rates_warm_up_for_as_long_as_averages_look_back_and_no_longer_than_is_left(optimizer, expected) -> None:
    growth = "growth=[{at_step: 100, model: {}}, {at_step: 193, model: {}}]"
    recipe = tiny_recipe("train.steps=200", f"optimizer={optimizer}", growth)
    assert [phase.growth.rewarmup.steps for phase in recipe.phases[1:]] == [expected, min(expected, 7)]


def test_rates_rise_linearly_after_a_growth_and_follow_the_schedule() -> None:
    growth = "growth=[{at_step: 4, model: {}, rewarmup_steps: 3}, {at_step: 5, model: {}, rewarmup_steps: 4}]"
    plain, growing = tiny_recipe(), tiny_recipe(growth)
    ramp = [growing.lr_factor(step) / plain.lr_factor(step) for step in range(1, 10)]
    # The second ramp starts inside the first, which it overrules.
    assert ramp == pytest.approx([1, 1, 1, 1, 1 / 3, 1 / 4, 2 / 4, 3 / 4, 1])


def test_flops_count_each_phase_with_its_model_and_every_pass_of_a_step() -> None:
    recipe = tiny_recipe(TWICE, "train.nested=null")
    per_token = [recipe.model_at(step).cost().training_flops(17) for step in (4, 7, 9)]
    by_hand = 4 * 17 * (4 * per_token[0] + 3 * per_token[1] + 2 * per_token[2])
    assert recipe.training_flops == by_hand
    assert recipe.pflops_days == pytest.approx(by_hand / 8.64e19)
    assert recipe.training_flops_until(5) == 4 * 17 * (4 * per_token[0] + per_token[1])
    later = (UNIFORM, DYNAMIC, "growth=[{at_step: 4, model: {d_model: 24}}]")
    assert tiny_recipe(*later, "train.nested={}").training_flops == 3 * tiny_recipe(*later).training_flops


def test_inspection_shows_the_last_model_and_what_each_costs() -> None:
    recipe = tiny_recipe(TWICE)
    summary = inspect_recipe(recipe)
    assert summary["widths"] == [32, 24, 24, 24, 32]
    assert summary["baseline"]["widths"] == [24] * 5
    assert [phase["step"] for phase in summary["growth"]] == [0, 4, 7]
    assert sum(phase["n_tokens"] for phase in summary["growth"]) == recipe.n_tokens
    assert sum(phase["pflops_days"] for phase in summary["growth"]) == pytest.approx(summary["pflops_days"])
    assert summary["growth"][-1]["params"] == summary["params"]["total"]
