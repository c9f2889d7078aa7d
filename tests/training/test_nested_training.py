import pytest
import torch
from one_step import DYNAMIC, INPUTS, TARGETS, UNCLIPPED, objective_of, step
from tiny_runs import step_config, tiny_recipe

from widthwise.mistakes import UserError
from widthwise.model.config import pflops_days
from widthwise.model.decoder import Decoder, build
from widthwise.recipe.inspection import inspect_recipe
from widthwise.recipe.objective import NestedConfig
from widthwise.run_dir import RunDir
from widthwise.runs.train import train


def dynamic() -> Decoder:
    return build(tiny_recipe(DYNAMIC).explicit_model, seed=1, dtype=torch.float64)


def test_every_step_sees_the_full_width_and_each_narrower_one_in_its_turn():
    objective = objective_of(dynamic(), step_config(nested=NestedConfig()))
    torch.manual_seed(0)
    drawn = [objective.draw_passes() for _ in range(60)]
    assert {tuple(each[:2]) for each in drawn} == {(None, 1.0)}
    assert {each[2] for each in drawn} == {0.25, 0.5, 0.75}
    assert {len(each) for each in drawn} == {NestedConfig().n_passes}
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
