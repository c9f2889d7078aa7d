import pytest
import torch
from tiny_runs import outcome, step_config, tiny_recipe
from torch.nn.functional import cross_entropy

from widthwise.config_io import UserError
from widthwise.model.config import pflops_days
from widthwise.model.decoder import build
from widthwise.recipe.inspection import inspect_recipe
from widthwise.recipe.optimizer import AdamWConfig
from widthwise.recipe.width_training import DistillConfig, NestedConfig
from widthwise.run_dir import RunDir
from widthwise.runs.train import train
from widthwise.training.objective import NestedPasses, Objective
from widthwise.training.train_state import optimizer_step

DYNAMIC = "model.ffn={kind: dynamic, min_fraction: 0.25}"
BATCH = torch.randint(0, 257, (6, 14), generator=torch.Generator().manual_seed(5))


def test_every_step_sees_the_full_width_and_each_narrower_one_in_its_turn():
    passes = NestedPasses(NestedConfig(), tiny_recipe(DYNAMIC).explicit_model)
    torch.manual_seed(0)
    drawn = [passes.draw() for _ in range(60)]
    assert {tuple(each[:2]) for each in drawn} == {(None, 1.0)}
    assert {each[2] for each in drawn} == {0.25, 0.5, 0.75}
    assert {len(each) for each in drawn} == {NestedConfig().n_passes}
    torch.manual_seed(0)
    assert [passes.draw() for _ in range(60)] == drawn


def test_a_sandwich_has_both_ends_and_one_width_between():
    config = NestedConfig(sandwich=True, chosen=False, n_widths=5)
    passes = NestedPasses(config, tiny_recipe(DYNAMIC).explicit_model)
    drawn = [passes.draw() for _ in range(60)]
    assert {(each[0], each[-1]) for each in drawn} == {(1.0, 0.25)}
    assert {each[1] for each in drawn} == {0.4375, 0.625, 0.8125}
    assert {len(each) for each in drawn} == {config.n_passes}
    teaching = NestedPasses(
        NestedConfig(sandwich=True, distill=DistillConfig()), tiny_recipe(DYNAMIC).explicit_model
    ).draw()
    assert (teaching[:2], teaching[3]) == ([1.0, None], 0.25)  # the full width comes first where it teaches


def fresh():
    model = build(tiny_recipe(DYNAMIC).explicit_model, seed=1, dtype=torch.float64)
    return model, AdamWConfig(lr=0.01).build(model)


def step(model, optimizer, passes, micro_batch_size=6, nested=None):
    config = step_config(micro_batch_size, max_grad_norm=1e9, nested=nested)
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


def logits_at(model, width_fraction):
    caught = []
    hook = model.exit.register_forward_hook(lambda module, inputs, output: caught.append(output))
    model.loss(BATCH[:, :-1], BATCH[:, 1:], width_fraction=width_fraction)
    hook.remove()
    return model.logits(caught[0])


@pytest.mark.parametrize("micro_batch_size", [6, 4])
def test_narrow_passes_learn_what_the_full_width_predicts(float64, micro_batch_size):
    """The gradient is that of the literal formula, in which the predictions of the full width are constants."""
    share, temperature, passes = 0.25, 2.0, [1.0, None, 0.5]
    model, optimizer = fresh()
    twin, _ = fresh()
    logits = {each: logits_at(twin, each) for each in passes}
    losses = {each: cross_entropy(found.flatten(0, 1), BATCH[:, 1:].flatten()) for each, found in logits.items()}
    taught, total = (logits[1.0].detach() / temperature).softmax(dim=-1), losses[1.0]
    for each in passes[1:]:
        narrow = (logits[each] / temperature).softmax(dim=-1)
        divergence = (taught * (taught / narrow).log()).sum(dim=-1).mean()
        total = total + (1 - share) * losses[each] + share * temperature**2 * divergence
    total.backward()
    nested = NestedConfig(distill=DistillConfig(weight=share, temperature=temperature))
    found = step(model, optimizer, passes, micro_batch_size, nested)
    torch.testing.assert_close(found.loss, losses[None].detach(), rtol=1e-12, atol=0)
    for (name, parameter), expected in zip(model.named_parameters(), twin.parameters()):
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-9, atol=1e-13, msg=name)


NESTED = "train.nested={sandwich: true}"
DISTILLED = "train.nested={sandwich: true, distill: {weight: 0.7, temperature: 2.0}}"


def test_distillation_of_weight_0_changes_nothing(tmp_path):
    train(tiny_recipe(DYNAMIC, NESTED), tmp_path / "without")
    train(tiny_recipe(DYNAMIC, NESTED, "train.nested.distill={weight: 0.0}"), tmp_path / "with")
    assert outcome(tmp_path / "with") == outcome(tmp_path / "without")


@pytest.mark.parametrize(("nested", "n_heads"), [(NESTED, 0), (DISTILLED, 3)])
def test_training_compute_counts_every_pass(tmp_path, nested, n_heads):
    """In each pass that is distilled the head's matrix of 257 x 16 maps the teacher's states too."""
    recipe = tiny_recipe(DYNAMIC, nested)
    flops = recipe.explicit_model.cost().training_flops(17)
    expected = pflops_days(4 * flops + n_heads * 2 * 257 * 16, 9 * 4 * 17)
    assert inspect_recipe(recipe)["pflops_days"] == pytest.approx(expected)
    train(recipe, tmp_path / "run")
    result = RunDir(tmp_path / "run").result()
    assert result["pflops_days"] == pytest.approx(expected)
    assert result["tokens"] == 9 * 4 * 17


def test_models_of_one_width_and_options_that_contradict_each_other_are_refused(tmp_path):
    for ffn, nested in (("{kind: swiglu}", NESTED), ("{kind: dynamic, min_fraction: 1.0}", DISTILLED)):
        with pytest.raises(UserError, match=r"train\.nested: no layer of the model has more than one width"):
            train(tiny_recipe(f"model.ffn={ffn}", nested), tmp_path / "run")
        assert not RunDir(tmp_path / "run").exists
    with pytest.raises(UserError, match="n_widths: got 2; sandwich needs one between"):
        tiny_recipe(DYNAMIC, "train.nested={sandwich: true, n_widths: 2}")
    with pytest.raises(UserError, match=r"width_budget: has nothing to work on where nested\.chosen is false"):
        tiny_recipe(DYNAMIC, "train.nested={chosen: false}", "train.width_budget={kind: lagrangian, target: 0.5}")
