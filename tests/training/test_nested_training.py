import pytest
import torch
from tiny_runs import step_config, tiny_recipe

from widthwise.config_io import UserError
from widthwise.model.config import pflops_days
from widthwise.model.decoder import build
from widthwise.recipe.inspection import inspect_recipe
from widthwise.recipe.objective import NestedConfig
from widthwise.recipe.optimizer import AdamWConfig
from widthwise.run_dir import RunDir
from widthwise.runs.train import train
from widthwise.training.objective import Objective
from widthwise.training.train_state import optimizer_step

DYNAMIC = "model.ffn={kind: dynamic, min_fraction: 0.25}"
BATCH = torch.randint(0, 257, (6, 14), generator=torch.Generator().manual_seed(5))


def test_every_step_sees_the_full_width_and_each_narrower_one_in_its_turn():
    objective = Objective(step_config(nested=NestedConfig()), tiny_recipe(DYNAMIC).explicit_model, BATCH.device)
    torch.manual_seed(0)
    drawn = [objective.draw_passes() for _ in range(60)]
    assert {tuple(each[:2]) for each in drawn} == {(None, 1.0)}
    assert {each[2] for each in drawn} == {0.25, 0.5, 0.75}
    assert {len(each) for each in drawn} == {NestedConfig().n_passes}
    torch.manual_seed(0)
    assert [objective.draw_passes() for _ in range(60)] == drawn


def test_without_the_chosen_widths_a_step_has_two_passes():
    config = step_config(nested=NestedConfig(chosen=False, n_widths=3))
    objective = Objective(config, tiny_recipe(DYNAMIC).explicit_model, BATCH.device)
    assert {tuple(objective.draw_passes()) for _ in range(60)} == {(1.0, 0.25), (1.0, 0.625)}
    assert config.n_passes == 2


def fresh():
    model = build(tiny_recipe(DYNAMIC).explicit_model, seed=1, dtype=torch.float64)
    return model, AdamWConfig(lr=0.01).build(model)


def step(model, optimizer, passes, micro_batch_size=6):
    config = step_config(micro_batch_size, max_grad_norm=1e9)
    objective = Objective(config, model.config, BATCH.device)
    objective.draw_passes = lambda: passes
    return optimizer_step(model, optimizer, BATCH, objective, config)


def test_the_gradient_is_the_sum_over_the_passes_and_the_loss_that_of_the_first(float64):
    passes = [None, 1.0, 0.5]
    model, optimizer = fresh()
    twin, _ = fresh()
    losses = [twin.loss(BATCH[:, :-1], BATCH[:, 1:], width_fraction=each) for each in passes]
    sum(loss.objective for loss in losses).backward()
    found = step(model, optimizer, passes, micro_batch_size=4)
    torch.testing.assert_close(found.loss, losses[0].losses.mean(), rtol=1e-12, atol=0)
    for (name, parameter), expected in zip(model.named_parameters(), twin.parameters()):
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-9, atol=1e-13, msg=name)


NESTED = "train.nested={}"


def test_training_compute_counts_every_pass(tmp_path):
    recipe = tiny_recipe(DYNAMIC, NESTED)
    flops = recipe.explicit_model.cost().training_flops(17)
    expected = pflops_days(3 * flops, 9 * 4 * 17)
    assert inspect_recipe(recipe)["pflops_days"] == pytest.approx(expected)
    train(recipe, tmp_path / "run")
    result = RunDir(tmp_path / "run").result()
    assert result["pflops_days"] == pytest.approx(expected)
    assert result["tokens"] == 9 * 4 * 17


def test_models_of_one_width_and_options_that_contradict_each_other_are_refused(tmp_path):
    for ffn in ("{kind: swiglu}", "{kind: dynamic, min_fraction: 1.0}"):
        with pytest.raises(UserError, match=r"train\.nested: no layer of the model has more than one width"):
            train(tiny_recipe(f"model.ffn={ffn}", NESTED), tmp_path / "run")
        assert not RunDir(tmp_path / "run").exists
    with pytest.raises(UserError, match=r"width_budget: has nothing to work on where nested\.chosen is false"):
        tiny_recipe(DYNAMIC, "train.nested={chosen: false}", "train.width_budget={kind: lagrangian, target: 0.5}")
