import pytest
import torch
from tiny_runs import step_config, tiny_recipe

from widthwise.config_io import UserError, parse
from widthwise.model.decoder import build
from widthwise.recipe.objective import WidthBudgetConfig
from widthwise.recipe.optimizer import AdamWConfig
from widthwise.recipe.train_section import TrainConfig
from widthwise.run_dir import RunDir
from widthwise.runs.train import train
from widthwise.training.objective import Objective, WidthBudget
from widthwise.training.train_state import optimizer_step

DYNAMIC = "model.ffn={kind: dynamic, min_fraction: 0.25}"
CPU = torch.device("cpu")


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


BATCH = torch.randint(0, 257, (6, 14), generator=torch.Generator().manual_seed(5))


def step_of(budget, micro_batch_size, mask="ste"):
    recipe = tiny_recipe(f"model.ffn={{kind: dynamic, min_fraction: 0.25, mask: {{kind: {mask}}}}}")
    model = build(recipe.explicit_model, seed=1, dtype=torch.float64)
    with torch.no_grad():
        for layer in model.layers:
            layer.ffn.score.v.weight.normal_(generator=torch.Generator().manual_seed(2))
    config = step_config(micro_batch_size, max_grad_norm=1e9, width_budget=budget and budget[0])
    objective = Objective(config, model.config, CPU)
    objective.load_state(budget[1] if budget else [])
    return model, optimizer_step(model, AdamWConfig(lr=0.01).build(model), BATCH, objective, config)


PRICED = (WidthBudgetConfig(target=0.5, damping=0.0), [0.4])
"""A budget, and the price it starts from."""


@pytest.mark.parametrize("micro_batch_size", [1, 4])
def test_a_linear_term_does_not_depend_on_micro_batches(float64, micro_batch_size):
    (whole, _), (split, _) = step_of(PRICED, 6), step_of(PRICED, micro_batch_size)
    for (name, one), other in zip(whole.named_parameters(), split.parameters()):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-9, atol=1e-13, msg=name)


def test_the_budget_is_not_part_of_the_reported_loss_but_of_the_gradient():
    (model, with_budget), (plain, without) = step_of(PRICED, 6), step_of(None, 6)
    assert with_budget.loss == without.loss
    assert model.layers[0].ffn.bias.weight.grad != plain.layers[0].ffn.bias.weight.grad


def test_a_hard_mask_leaves_the_budget_its_gradient():
    model, _ = step_of(PRICED, 6, mask="hard")
    plain, _ = step_of(None, 6, mask="hard")
    assert all(layer.ffn.bias.weight.grad > 0 for layer in model.layers)
    assert all(not layer.ffn.bias.weight.grad for layer in plain.layers)


def test_a_budget_that_cannot_work_is_refused_before_anything_is_written(tmp_path):
    for overrides, message in (
        (["train.width_budget={target: 0.5}"], "no layer of the model chooses its width"),
        (
            ["train.width_budget={target: 0.5}", "model.ffn={kind: dynamic, mask: {kind: none}}"],
            "no layer of the model chooses its width",
        ),
        ([DYNAMIC, "train.width_budget={kind: lagrangian, target: 0.25}"], r"target: got 0.25; must be above 0.25"),
    ):
        with pytest.raises(UserError, match=f"train.width_budget.*{message}"):
            train(tiny_recipe(*overrides), tmp_path / "run")
    assert not RunDir(tmp_path / "run").exists
