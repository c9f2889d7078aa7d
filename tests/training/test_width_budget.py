import pytest
import torch
from dynamic_models import model_of
from one_step import CPU, DYNAMIC, UNCLIPPED, objective_of, step
from tiny_runs import step_config, tiny_recipe

from widthwise.config_io import parse
from widthwise.mistakes import UserError
from widthwise.recipe.objective import WidthBudgetConfig
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
