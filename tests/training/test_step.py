import pytest
import torch
from dynamic_models import model_of
from growing_runs import SLOTS
from one_step import DYNAMIC, INPUTS, TARGETS, UNCLIPPED, objective_of, step
from thinned import in_turn
from tiny_runs import step_config, tiny_recipe

from widthwise.model.decoder import build
from widthwise.recipe.objective import NestedConfig, WidthBudgetConfig
from widthwise.recipe.optimizer import AdamWConfig


def fresh(dtype=torch.float64, *overrides):
    return build(tiny_recipe(*overrides).explicit_model, seed=1, dtype=dtype)


def gradients(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


MTP = "model.mtp={n_depths: 2, coefficient: 0.5}"
OBJECTIVES = {
    "plain": ((), {}),
    "with z-loss": ((), {"z_loss": 0.01}),
    "with further heads": ((MTP,), {"z_loss": 0.01}),
    "with further heads in slots": ((MTP, SLOTS), {"z_loss": 0.01}),
    "with a width budget": ((DYNAMIC,), {"width_budget": WidthBudgetConfig(target=0.5, damping=0.0)}),
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
    assert objective.term(free, None) > free.objective
    assert objective.term(forced, 0.5) is forced.objective
