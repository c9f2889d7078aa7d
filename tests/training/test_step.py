"""One step: micro-batches, clipping and precision; width budgets, nested training of several widths, and MTP heads."""

import pytest
import torch
from boxes import refusal
from comparing import random
from dynamic_models import model_of
from growing_runs import SLOTS
from one_step import CPU, DYNAMIC, INPUTS, TARGETS, UNCLIPPED, objective_of, step
from thinned import in_turn
from tiny_runs import step_config, tiny_recipe

from widthwise.model.decoder import build
from widthwise.recipe.objective import NestedConfig, WidthBudgetConfig
from widthwise.recipe.optimizer import AdamWConfig
from widthwise.run_dir import RunDir
from widthwise.runs.train import train
from widthwise.training.objective import WidthBudget


def fresh(dtype=torch.float64, *overrides):
    return build(tiny_recipe(*overrides).explicit_model, seed=1, dtype=dtype)


def gradients(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


BUDGET = WidthBudgetConfig(target=0.5, damping=0.0)
HALF, NESTED = "train.width_budget={target: 0.5}", "train.nested={}"
MTP = "model.mtp={n_depths: 2, coefficient: 0.5}"
OBJECTIVES = {
    "plain": ((), {}),
    "with z-loss": ((), {"z_loss": 0.01}),
    "with further heads": ((MTP,), {"z_loss": 0.01}),
    "with further heads in slots": ((MTP, SLOTS), {"z_loss": 0.01}),
    "with a width budget": ((DYNAMIC,), {"width_budget": BUDGET}),
}
"""Overrides of the recipe, and of its train section. A budget that is not damped is linear in the widths."""


@in_turn(("name", OBJECTIVES), ("micro_batch_size", [1, 4]))
def test_accumulation_over_any_split_equals_one_batch(float64, name, micro_batch_size):
    overrides, changes = OBJECTIVES[name]
    models, outcomes = [model_of(*overrides).double() for _ in range(2)], []
    for model, size in zip(models, (6, micro_batch_size), strict=True):
        objective = objective_of(model, step_config(size, **changes))
        objective.load_state([0.4] if "width_budget" in changes else [])  # the price
        outcomes.append(step(model, size, objective=objective, max_grad_norm=UNCLIPPED, **changes))
    expected, found = outcomes
    torch.testing.assert_close(found.loss, expected.loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(found.grad_norm, expected.grad_norm, rtol=1e-11, atol=0)
    torch.testing.assert_close(found.mtp_losses, expected.mtp_losses, rtol=1e-12, atol=0)
    torch.testing.assert_close(*map(gradients, reversed(models)), rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("z_loss", [1e-4, 0.3])
def test_gradient_is_that_of_cross_entropy_and_the_mean_squared_log_normaliser_which_is_not_reported(float64, z_loss):
    model = fresh()
    logits = model(INPUTS).flatten(0, 1)
    cross_entropy = torch.nn.functional.cross_entropy(logits, TARGETS.flatten())
    objective = cross_entropy + z_loss * logits.logsumexp(dim=-1).square().mean()
    expected = torch.autograd.grad(objective, list(model.parameters()))
    found = step(model, z_loss=z_loss, max_grad_norm=UNCLIPPED)
    torch.testing.assert_close(found.loss, cross_entropy.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close([each.grad for each in model.parameters()], list(expected), rtol=1e-9, atol=1e-14)


def test_losses_of_further_heads_are_means_over_all_positions_that_they_were_asked(float64):
    model = fresh(torch.float64, MTP)
    expected = torch.stack([losses.mean() for losses in model.loss(INPUTS, TARGETS).mtp_losses])
    torch.testing.assert_close(step(model, 4).mtp_losses, expected, rtol=1e-12, atol=0)


def test_gradient_is_clipped_to_the_global_norm_and_reported_before():
    model = fresh(torch.float32)
    outcome = step(model, max_grad_norm=0.01)
    assert outcome.grad_norm > 0.01
    assert gradients(model).norm().item() == pytest.approx(0.01, rel=1e-3)


def test_bf16_keeps_weights_gradients_and_optimizer_state_in_fp32():
    model = fresh(torch.float32)
    optimizer = AdamWConfig(lr=0.01).build(model)
    losses = step(model, optimizer=optimizer, precision="bf16").loss, step(fresh(torch.float32)).loss
    assert losses[0] != losses[1]
    torch.testing.assert_close(*losses, rtol=0.01, atol=0)
    tensors = [*model.parameters(), *(parameter.grad for parameter in model.parameters())]
    tensors += [value for state in optimizer.state.values() for value in state.values()]
    assert {tensor.dtype for tensor in tensors} == {torch.float32}


def test_gradients_left_over_do_not_influence_the_step():
    first, second = fresh(torch.float32), fresh(torch.float32)
    for parameter in first.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    step(first)
    step(second)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters()))


def test_the_budget_joins_the_passes_in_which_tokens_choose_their_widths():
    model = fresh(torch.float32, DYNAMIC)
    objective = objective_of(model, step_config(width_budget=WidthBudgetConfig(target=0.1), nested=NestedConfig()))
    assert objective.draw_passes()[:2] == [None, 1.0]
    free, forced = model.loss(INPUTS, TARGETS), model.loss(INPUTS, TARGETS, width_fraction=0.5)
    assert objective.of_pass(free, None) > free.objective
    assert objective.of_pass(forced, 0.5) is forced.objective


def width_budget(**settings):
    return WidthBudget(WidthBudgetConfig(**settings), tiny_recipe(DYNAMIC).explicit_model, CPU)


def shares():
    """FLOPs of gate, up and down of the tiny model's layers, the last of which writes only 16 coordinates."""
    sizes = [(24, 72, 24), (8, 24, 8), (24, 72, 16)]
    flops = torch.tensor([2.0 * d_ff * (2 * d_model + d_out) for d_model, d_ff, d_out in sizes], dtype=torch.float64)
    return flops / flops.sum()


def test_term_and_gradient_are_the_formula_with_layers_weighted_by_flops():
    budget = width_budget(target=0.4, damping=0.0)
    budget.price = torch.tensor([0.3], dtype=torch.float64)
    fractions = [random(2, 5, seed=layer).sigmoid().requires_grad_() for layer in range(3)]
    found = budget.term([{"width_fraction": fraction} for fraction in fractions])
    expected = 0.3 * (shares() @ torch.stack([fraction.mean() for fraction in fractions]) - 0.4)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    gradients = (torch.autograd.grad(value, fractions) for value in (found, expected))
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-14)


def test_the_price_moves_once_a_step_by_rate_times_excess_and_not_below_zero():
    budget = width_budget(target=0.5, rate=0.1)
    expected = 0.0
    for means in ([0.9, 0.6, 0.7], [0.8, 0.1, 0.3], [0.3, 0.3, 0.3], [0.4, 0.9, 0.4]):
        budget.end_step([{"width_fraction": torch.tensor(mean)} for mean in means])
        excess = sum(share * mean for share, mean in zip(shares().tolist(), means)) - 0.5
        expected = max(0.0, expected + 0.1 * excess)
        assert budget.price.item() == pytest.approx(expected, abs=1e-7)


def test_damping_adds_to_the_price_while_the_mean_is_above_the_target():
    budget = width_budget(target=0.5, damping=2.0)
    for level, price in ((0.8, 0.1 + 2.0 * 0.3), (0.48, 0.1 - 2.0 * 0.02), (0.3, 0.0)):
        budget.price = torch.tensor([0.1], dtype=torch.float64)
        fractions = [torch.full((1, 3), level, dtype=torch.float64, requires_grad=True) for _ in range(3)]
        budget.term([{"width_fraction": fraction} for fraction in fractions]).backward()
        assert sum(float(fraction.grad.sum()) for fraction in fractions) == pytest.approx(price, abs=1e-9)


def step_of(budget, mask):
    model = model_of(f"model.ffn={{kind: dynamic, min_fraction: 0.25, mask: {{kind: {mask}}}}}").double()
    changes = {"max_grad_norm": UNCLIPPED, "width_budget": budget}
    objective = objective_of(model, step_config(**changes))
    objective.load_state([0.4] if budget else [])
    return model, step(model, objective=objective, **changes)


@pytest.mark.parametrize("mask", ["ste", "hard"])
def test_the_budget_is_not_part_of_the_reported_loss_but_of_the_gradient_also_of_a_hard_mask(mask):
    (model, with_budget), (plain, without) = step_of(BUDGET, mask), step_of(None, mask)
    assert with_budget.loss == without.loss
    for layer, twin in zip(model.layers, plain.layers):
        without_budget = twin.ffn.bias.weight.grad
        assert (without_budget is None) == (mask == "hard")
        assert layer.ffn.bias.weight.grad > (without_budget or 0)


def test_every_step_sees_the_full_width_and_each_narrower_one_in_its_turn():
    model = fresh(torch.float64, DYNAMIC)
    objective = objective_of(model, step_config(nested=NestedConfig()))
    torch.manual_seed(0)
    drawn = [objective.draw_passes() for _ in range(60)]
    assert set(map(tuple, drawn)) == {(None, 1.0, 0.25), (None, 1.0, 0.5), (None, 1.0, 0.75)}
    torch.manual_seed(0)
    assert [objective.draw_passes() for _ in range(60)] == drawn
    config = step_config(nested=NestedConfig(chosen=False, n_widths=3))
    objective = objective_of(model, config)
    assert {tuple(objective.draw_passes()) for _ in range(60)} == {(1.0, 0.25), (1.0, 0.625)}
    assert config.n_passes == 2


def test_the_gradient_is_the_sum_over_the_passes_and_the_loss_that_of_the_first(float64):
    passes = [None, 1.0, 0.5]
    model, twin = (fresh(torch.float64, DYNAMIC) for _ in range(2))
    losses = [twin.loss(INPUTS, TARGETS, width_fraction=each) for each in passes]
    sum(loss.objective for loss in losses).backward()
    objective = objective_of(model, step_config(4))
    objective.draw_passes = lambda: passes
    found = step(model, 4, objective=objective, max_grad_norm=UNCLIPPED)
    torch.testing.assert_close(found.loss, losses[0].losses.mean(), rtol=1e-12, atol=0)
    for (name, parameter), expected in zip(model.named_parameters(), twin.parameters()):
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-9, atol=1e-13, msg=name)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.ffn={kind: swiglu}", HALF], "train.width_budget: no layer of the model chooses its width"),
        (["model.ffn={kind: dynamic, mask: {kind: none}}", HALF], "train.width_budget: no layer of the model chooses"),
        ([DYNAMIC, "train.width_budget={target: 0.25}"], "train.width_budget.target: got 0.25; must be above 0.25"),
        (["model.ffn={kind: swiglu}", NESTED], "train.nested: no layer of the model has more than one width"),
        (["model.ffn={kind: dynamic, min_fraction: 1.0}", NESTED], "train.nested: no layer of the model has more than"),
        ([DYNAMIC, HALF, "train.nested={chosen: false}"], "width_budget: has nothing to work on where nested.chosen"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(tmp_path, overrides, message):
    assert message in refusal(lambda: train(tiny_recipe(*overrides), tmp_path / "run"))
    assert not RunDir(tmp_path / "run").exists
