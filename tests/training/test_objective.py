"""Width budgets, and nested training of several widths."""

import pytest
import torch
from dynamic_models import model_of
from one_step import CPU, DYNAMIC, INPUTS, TARGETS, UNCLIPPED, objective_of, step
from tiny_runs import step_config, tiny_recipe

from widthwise.config_io import parse
from widthwise.mistakes import UserError
from widthwise.model.config import pflops_days
from widthwise.model.decoder import Decoder, build
from widthwise.recipe.inspection import inspect_recipe
from widthwise.recipe.objective import NestedConfig, WidthBudgetConfig
from widthwise.recipe.train_section import TrainConfig
from widthwise.run_dir import RunDir
from widthwise.runs.train import train
from widthwise.training.objective import WidthBudget


def budget_of(recipe, **settings):
    data = {"steps": 9, "batch_size": 4, "width_budget": settings}
    return WidthBudget(parse(TrainConfig, data).width_budget, recipe.explicit_model, CPU)


def random_fractions(seed=0):
    """The fractions that the three layers of the tiny model choose for 2 sequences of 5 tokens."""
    random = torch.Generator().manual_seed(seed)
    return [torch.rand(2, 5, generator=random, dtype=torch.float64).requires_grad_() for _ in range(3)]


def shares():
    """FLOPs of gate, up and down of the tiny model's layers, the last of which writes only 16 coordinates."""
    sizes = [(24, 72, 24), (8, 24, 8), (24, 72, 16)]
    flops = torch.tensor([2.0 * d_ff * (2 * d_model + d_out) for d_model, d_ff, d_out in sizes], dtype=torch.float64)
    return flops / flops.sum()


def test_term_and_gradient_are_the_formula_with_layers_weighted_by_flops():
    budget = budget_of(tiny_recipe(DYNAMIC), target=0.4, damping=0.0)
    budget.price = torch.tensor([0.3], dtype=torch.float64)
    fractions, twins = random_fractions(), random_fractions()
    found = budget.term([{"width_fraction": fraction} for fraction in fractions])
    expected = 0.3 * (shares() @ torch.stack([twin.mean() for twin in twins]) - 0.4)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    found.backward()
    expected.backward()
    for fraction, twin in zip(fractions, twins):
        torch.testing.assert_close(fraction.grad, twin.grad, rtol=1e-10, atol=1e-14)


def test_the_price_moves_once_a_step_by_rate_times_excess_and_not_below_zero():
    budget = budget_of(tiny_recipe(DYNAMIC), target=0.5, rate=0.1)
    expected = 0.0
    for means in ([0.9, 0.6, 0.7], [0.8, 0.1, 0.3], [0.3, 0.3, 0.3], [0.4, 0.9, 0.4]):
        budget.end_step([{"width_fraction": torch.tensor(mean)} for mean in means])
        excess = sum(share * mean for share, mean in zip(shares().tolist(), means)) - 0.5
        expected = max(0.0, expected + 0.1 * excess)
        assert budget.price.item() == pytest.approx(expected, abs=1e-7)


def test_damping_adds_to_the_price_while_the_mean_is_above_the_target():
    budget = budget_of(tiny_recipe(DYNAMIC), target=0.5, damping=2.0)
    for level, price in ((0.8, 0.1 + 2.0 * 0.3), (0.48, 0.1 - 2.0 * 0.02), (0.3, 0.0)):
        budget.price = torch.tensor([0.1], dtype=torch.float64)
        fractions = [torch.full((1, 3), level, dtype=torch.float64, requires_grad=True) for _ in range(3)]
        budget.term([{"width_fraction": fraction} for fraction in fractions]).backward()
        assert sum(float(fraction.grad.sum()) for fraction in fractions) == pytest.approx(price, abs=1e-9)


def step_of(budget, mask="ste"):
    model = model_of(f"model.ffn={{kind: dynamic, min_fraction: 0.25, mask: {{kind: {mask}}}}}").double()
    changes = {"max_grad_norm": UNCLIPPED, "width_budget": budget}
    objective = objective_of(model, step_config(**changes))
    objective.load_state([0.4] if budget else [])
    return model, step(model, objective=objective, **changes)


BUDGET = WidthBudgetConfig(target=0.5, damping=0.0)


def test_the_budget_is_not_part_of_the_reported_loss_but_of_the_gradient():
    (model, with_budget), (plain, without) = step_of(BUDGET), step_of(None)
    assert with_budget.loss == without.loss
    assert model.layers[0].ffn.bias.weight.grad != plain.layers[0].ffn.bias.weight.grad


def test_a_hard_mask_leaves_the_budget_its_gradient():
    (model, _), (plain, _) = step_of(BUDGET, mask="hard"), step_of(None, mask="hard")
    assert all(layer.ffn.bias.weight.grad > 0 for layer in model.layers)
    assert all(not layer.ffn.bias.weight.grad for layer in plain.layers)


def test_a_budget_that_cannot_work_is_refused_before_anything_is_written(tmp_path):
    without_choice = "no layer of the model chooses its width"
    for ffn, target, message in (
        ("model.ffn={kind: swiglu}", 0.5, without_choice),
        ("model.ffn={kind: dynamic, mask: {kind: none}}", 0.5, without_choice),
        (DYNAMIC, 0.25, "target: got 0.25; must be above 0.25"),
    ):
        with pytest.raises(UserError, match=rf"train\.width_budget.*{message}"):
            train(tiny_recipe(ffn, f"train.width_budget={{target: {target}}}"), tmp_path / "run")
    assert not RunDir(tmp_path / "run").exists


def dynamic() -> Decoder:
    return build(tiny_recipe(DYNAMIC).explicit_model, seed=1, dtype=torch.float64)


def test_every_step_sees_the_full_width_and_each_narrower_one_in_its_turn():
    objective = objective_of(dynamic(), step_config(nested=NestedConfig()))
    torch.manual_seed(0)
    drawn = [objective.draw_passes() for _ in range(60)]
    assert {tuple(each[:2]) for each in drawn} == {(None, 1.0)}
    assert {each[2] for each in drawn} == {0.25, 0.5, 0.75}
    assert {len(each) for each in drawn} == {3}
    torch.manual_seed(0)
    assert [objective.draw_passes() for _ in range(60)] == drawn


def test_without_the_chosen_widths_a_step_has_two_passes():
    config = step_config(nested=NestedConfig(chosen=False, n_widths=3))
    objective = objective_of(dynamic(), config)
    assert {tuple(objective.draw_passes()) for _ in range(60)} == {(1.0, 0.25), (1.0, 0.625)}
    assert config.n_passes == 2


def test_the_gradient_is_the_sum_over_the_passes_and_the_loss_that_of_the_first(float64):
    passes = [None, 1.0, 0.5]
    model, twin = dynamic(), dynamic()
    losses = [twin.loss(INPUTS, TARGETS, width_fraction=each) for each in passes]
    sum(loss.objective for loss in losses).backward()
    objective = objective_of(model, step_config(4))
    objective.draw_passes = lambda: passes
    found = step(model, 4, objective=objective, max_grad_norm=UNCLIPPED)
    torch.testing.assert_close(found.loss, losses[0].losses.mean(), rtol=1e-12, atol=0)
    for (name, parameter), expected in zip(model.named_parameters(), twin.parameters()):
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-9, atol=1e-13, msg=name)


NESTED = "train.nested={}"


def test_training_compute_counts_every_pass():
    recipe = tiny_recipe(DYNAMIC, NESTED)
    flops = recipe.explicit_model.cost().training_flops(17)
    expected = pflops_days(3 * flops, 9 * 4 * 17)
    assert inspect_recipe(recipe)["pflops_days"] == pytest.approx(expected)


def test_models_of_one_width_and_options_that_contradict_each_other_are_refused(tmp_path):
    for ffn in ("{kind: swiglu}", "{kind: dynamic, min_fraction: 1.0}"):
        with pytest.raises(UserError, match=r"train\.nested: no layer of the model has more than one width"):
            train(tiny_recipe(f"model.ffn={ffn}", NESTED), tmp_path / "run")
        assert not RunDir(tmp_path / "run").exists
    with pytest.raises(UserError, match=r"width_budget: has nothing to work on where nested\.chosen is false"):
        tiny_recipe(DYNAMIC, "train.nested={chosen: false}", "train.width_budget={kind: lagrangian, target: 0.5}")
