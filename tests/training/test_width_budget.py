import pytest
import torch
from thinned import in_turn
from tiny_runs import step_config, tiny_recipe

from widthwise.config_io import UserError, parse
from widthwise.model.decoder import build
from widthwise.recipe.optimizer import AdamWConfig
from widthwise.recipe.train_section import TrainConfig
from widthwise.recipe.width_training import LagrangianBudget, PenaltyBudget
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


LITERAL = {
    ("penalty", "model"): lambda means, own, price: 0.7 * own @ means,
    ("quadratic", "model"): lambda means, own, price: 0.7 * max(0.0, own @ means - 0.4) ** 2,
    ("quadratic", "layer"): lambda means, own, price: 0.7 * own @ (means - 0.4).clamp(min=0) ** 2,
    ("lagrangian", "model"): lambda means, own, price: price[0] * (own @ means - 0.4),
    ("lagrangian", "layer"): lambda means, own, price: own @ (means.new_tensor(price) * (means - 0.4)),
}


@in_turn(
    (("kind", "scope"), LITERAL),
    ("spread", [0.0, 0.3]),
)
def test_term_and_gradient_are_the_formula_with_layers_weighted_by_flops(kind, scope, spread):
    settings = {"kind": kind, "spread": spread}
    settings |= {"weight": 0.7} if kind != "lagrangian" else {"damping": 0.0}
    settings |= {"target": 0.4, "scope": scope} if kind != "penalty" else {}
    budget = budget_of(tiny_recipe(DYNAMIC), **settings)
    price = [0.3, 0.0, 0.2][: len(budget.prices.tolist())]
    budget.load_state(price)
    fractions, twins = random_fractions(), random_fractions()
    found = budget.term([{"width_fraction": fraction} for fraction in fractions])
    means = torch.stack([twin.mean() for twin in twins])
    variances = torch.stack([((twin - twin.mean()) ** 2).mean() for twin in twins])
    expected = LITERAL[kind, scope](means, shares(), price) - spread * shares() @ variances
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    found.backward()
    expected.backward()
    for fraction, twin in zip(fractions, twins):
        torch.testing.assert_close(fraction.grad, twin.grad, rtol=1e-10, atol=1e-14)


def test_the_budget_of_a_layer_below_its_target_is_free():
    budget = budget_of(tiny_recipe(DYNAMIC), kind="quadratic", target=0.99, weight=5.0)
    assert budget.term([{"width_fraction": fraction} for fraction in random_fractions()]) == 0


@pytest.mark.parametrize("scope", ["model", "layer"])
def test_the_price_moves_once_a_step_by_rate_times_excess_and_not_below_zero(scope):
    budget = budget_of(tiny_recipe(DYNAMIC), kind="lagrangian", target=0.5, rate=0.1, scope=scope)
    expected = [0.0] if scope == "model" else [0.0, 0.0, 0.0]
    for means in ([0.9, 0.6, 0.7], [0.8, 0.1, 0.3], [0.3, 0.3, 0.3], [0.4, 0.9, 0.4]):
        budget.end_step([torch.tensor(mean) for mean in means])
        excess = [sum(shares().tolist()[i] * means[i] for i in range(3)) - 0.5] if scope == "model" else None
        excess = excess or [mean - 0.5 for mean in means]
        expected = [max(0.0, price + 0.1 * over) for price, over in zip(expected, excess)]
        assert budget.prices.tolist() == pytest.approx(expected, abs=1e-7)
    assert budget.record() == {"width_price": budget.prices.tolist() if scope == "layer" else budget.prices.tolist()[0]}


def test_damping_adds_to_the_price_while_the_mean_is_above_the_target():
    budget = budget_of(tiny_recipe(DYNAMIC), kind="lagrangian", target=0.5, damping=2.0)
    for level, price in ((0.8, 0.1 + 2.0 * 0.3), (0.48, 0.1 - 2.0 * 0.02), (0.3, 0.0)):
        budget.load_state([0.1])
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


PRICED = (LagrangianBudget(target=0.5, damping=0.0), [0.4])
"""A budget, and the prices it starts from."""
PENALTY = (PenaltyBudget(weight=0.4), [0.0])


@pytest.mark.parametrize(("budget", "micro_batch_size"), [(PRICED, 1), (PENALTY, 4)], ids=["lagrangian", "penalty"])
def test_linear_terms_do_not_depend_on_micro_batches(float64, budget, micro_batch_size):
    (whole, _), (split, _) = step_of(budget, 6), step_of(budget, micro_batch_size)
    for (name, one), other in zip(whole.named_parameters(), split.parameters()):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-9, atol=1e-13, msg=name)


def test_the_budget_is_not_part_of_the_reported_loss_but_of_the_gradient():
    (model, with_budget), (plain, without) = step_of(PENALTY, 6), step_of(None, 6)
    assert with_budget.loss == without.loss
    assert model.layers[0].ffn.bias.weight.grad != plain.layers[0].ffn.bias.weight.grad


def test_a_hard_mask_leaves_the_budget_its_gradient():
    model, _ = step_of(PENALTY, 6, mask="hard")
    plain, _ = step_of(None, 6, mask="hard")
    assert all(layer.ffn.bias.weight.grad > 0 for layer in model.layers)
    assert all(not layer.ffn.bias.weight.grad for layer in plain.layers)


def test_a_budget_that_cannot_work_is_refused_before_anything_is_written(tmp_path):
    for overrides, message in (
        (["train.width_budget={kind: penalty, weight: 1.0}"], "no layer of the model chooses its width"),
        (
            ["train.width_budget={kind: penalty, weight: 1.0}", "model.ffn={kind: dynamic, mask: {kind: none}}"],
            "no layer of the model chooses its width",
        ),
        ([DYNAMIC, "train.width_budget={kind: lagrangian, target: 0.25}"], r"target: got 0.25; must be above 0.25"),
        (
            [
                DYNAMIC,
                "train.width_budget={kind: quadratic, target: 0.5, weight: 1.0, scope: layer}",
                "model.layers={1: {ffn: {min_fraction: 0.6}}}",
            ],
            r"target: got 0.5; must be above 0.6",
        ),
    ):
        with pytest.raises(UserError, match=f"train.width_budget.*{message}"):
            train(tiny_recipe(*overrides), tmp_path / "run")
    assert not RunDir(tmp_path / "run").exists
