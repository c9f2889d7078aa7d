import pytest
import torch
from thinned import in_turn
from tiny_runs import step_config, tiny_recipe

from widthwise.model.decoder import build
from widthwise.recipe.objective import NestedConfig, WidthBudgetConfig
from widthwise.recipe.optimizer import AdamWConfig
from widthwise.training.objective import Objective
from widthwise.training.step_statistics import ChoiceMeans
from widthwise.training.train_state import optimizer_step

BATCH = torch.randint(0, 257, (6, 14), generator=torch.Generator().manual_seed(5))


def fresh(dtype=torch.float64):
    model = build(tiny_recipe().explicit_model, seed=1, dtype=dtype)
    return model, AdamWConfig(lr=0.01).build(model)


def step(model, optimizer, **changes):
    config = step_config(**changes)
    return optimizer_step(model, optimizer, BATCH, Objective(config, model.config, BATCH.device), config)


def gradients(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@in_turn(
    ("micro_batch_size", [1, 4]),
    ("z_loss", [0.0, 0.01]),
)
def test_accumulation_over_any_split_equals_one_batch(float64, micro_batch_size, z_loss):
    whole, whole_optimizer = fresh()
    split, split_optimizer = fresh()
    expected = step(whole, whole_optimizer, z_loss=z_loss)
    found = step(split, split_optimizer, z_loss=z_loss, micro_batch_size=micro_batch_size)
    torch.testing.assert_close(found.loss, expected.loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(found.grad_norm, expected.grad_norm, rtol=1e-11, atol=0)
    torch.testing.assert_close(gradients(split), gradients(whole), rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("z_loss", [1e-4, 0.3])
def test_gradient_is_that_of_cross_entropy_and_the_mean_squared_log_normaliser_which_is_not_reported(float64, z_loss):
    model, optimizer = fresh()
    logits = model(BATCH[:, :-1]).flatten(0, 1)
    cross_entropy = torch.nn.functional.cross_entropy(logits, BATCH[:, 1:].flatten())
    objective = cross_entropy + z_loss * logits.logsumexp(dim=-1).square().mean()
    expected = torch.autograd.grad(objective, list(model.parameters()))
    found = step(model, optimizer, z_loss=z_loss, max_grad_norm=1e9)
    torch.testing.assert_close(found.loss, cross_entropy.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close([each.grad for each in model.parameters()], list(expected), rtol=1e-9, atol=1e-14)


def test_gradient_is_clipped_to_the_global_norm_and_reported_before():
    model, optimizer = fresh(torch.float32)
    outcome = step(model, optimizer, max_grad_norm=0.01)
    assert outcome.grad_norm > 0.01
    assert gradients(model).norm().item() == pytest.approx(0.01, rel=1e-3)


def test_bf16_keeps_weights_gradients_and_optimizer_state_in_fp32():
    model, optimizer = fresh(torch.float32)
    losses = step(model, optimizer, precision="bf16").loss, step(*fresh(torch.float32)).loss
    assert losses[0] != losses[1]
    torch.testing.assert_close(*losses, rtol=0.01, atol=0)
    tensors = [*model.parameters(), *(parameter.grad for parameter in model.parameters())]
    tensors += [value for state in optimizer.state.values() for value in state.values()]
    assert {tensor.dtype for tensor in tensors} == {torch.float32}


def test_gradients_left_over_do_not_influence_the_step():
    first, second = fresh(torch.float32), fresh(torch.float32)
    for parameter in first[0].parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    step(*first)
    step(*second)
    assert all(torch.equal(a, b) for a, b in zip(first[0].parameters(), second[0].parameters()))


CPU = torch.device("cpu")
DYNAMIC = "model.ffn={kind: dynamic, min_fraction: 0.25}"
TOKENS = torch.randint(0, 257, (3, 12), generator=torch.Generator().manual_seed(1))


def loss_of(model, width_fraction=None):
    return model.loss(TOKENS[:, :-1], TOKENS[:, 1:], width_fraction=width_fraction)


def test_a_model_without_dynamic_widths_has_one_pass_to_which_nothing_is_added():
    model = build(tiny_recipe().explicit_model, seed=1)
    objective, loss = Objective(step_config(), model.config, CPU), loss_of(model)
    assert list(objective.draw_passes()) == [None]
    assert objective.term(loss, None) is loss.objective
    objective.end_step(ChoiceMeans())
    assert (objective.state(), objective.record()) == ([], {})


def test_the_budget_joins_the_passes_in_which_tokens_choose_their_widths():
    model = build(tiny_recipe(DYNAMIC).explicit_model, seed=1)
    config = step_config(width_budget=WidthBudgetConfig(target=0.1), nested=NestedConfig())
    objective = Objective(config, model.config, CPU)
    assert objective.draw_passes()[:2] == [None, 1.0]
    free, forced = loss_of(model), loss_of(model, 0.5)
    assert objective.term(free, None) > free.objective
    assert objective.term(forced, 0.5) is forced.objective
