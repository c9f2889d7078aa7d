"""Old entries that are frozen while the new ones learn."""

import copy
from pathlib import Path

import pytest
import torch
from boxes import refusal
from growing_runs import APART, MUON, UNIFORM
from one_step import INPUTS, TARGETS
from tiny_runs import resumed_alike, tiny_recipe, unfinished_copy, weights_at

from widthwise.model.decoder import build
from widthwise.recipe.growth_events import Rewarmup
from widthwise.recipe.optimizers import set_lr
from widthwise.recipe.recipe import saved_recipe
from widthwise.run_dir import RunDir
from widthwise.runs.grow import GrowOptions, grow_run, growth_intended, wanted_recipe
from widthwise.runs.open import RunCheckpoint
from widthwise.runs.train import resume, train
from widthwise.training.growth_step import FrozenEntries

ADAMW = "optimizer={kind: adamw, lr: 0.01}"
WIDER = "growth=[{at_step: 2, model: {n_layers: 5, ffn: {kind: swiglu, ratio: 5}}}]"


@pytest.mark.parametrize(("overrides", "done"), [(ADAMW, 1), (MUON, 2), (MUON, 3)])
def test_an_entry_moves_as_it_would_if_its_rate_were_that_of_all(overrides: str, done: int) -> None:
    """After two steps of the optimizer, so that it has moments. The weights decay."""
    recipe = tiny_recipe(UNIFORM, overrides, WIDER)
    plan = recipe.phases[1].growth.plan
    rewarmup = Rewarmup(after_step=10, steps=0, freeze_steps=2)
    model = build(plan.new, seed=1)
    optimizer = recipe.optimizer.build(model)

    for n_before in range(3):
        if n_before:
            optimizer.step()
            optimizer.zero_grad()
        model.loss(INPUTS, TARGETS).objective.backward()
    found = {}
    for factor in (0.0, 1.0):
        other = copy.deepcopy(model)
        rated = recipe.optimizer.build(other)
        for each, parameter in zip(other.parameters(), model.parameters()):
            each.grad = parameter.grad.clone()
            rated.state[each].update({part: value.clone() for part, value in optimizer.state[parameter].items()})
        set_lr(rated, recipe.optimizer.lr * factor)
        rated.step()
        found[factor] = {name: each.detach() for name, each in other.named_parameters()}
    set_lr(optimizer, recipe.optimizer.lr)
    with FrozenEntries(model, rewarmup, plan).applied(rewarmup.after_step + done):
        optimizer.step()
    is_new, of_old = plan.is_new(), 0.0 if done <= 2 else 1.0
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter[~is_new[name]], found[of_old][name][~is_new[name]])
        torch.testing.assert_close(parameter[is_new[name]], found[1.0][name][is_new[name]], rtol=1e-6, atol=1e-8)


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("apart") / "run"
    train(tiny_recipe(*APART), path)
    return path


def test_old_entries_stay_bit_for_bit_until_they_are_let_go(apart: Path) -> None:
    """APART grows after step 4 and freezes for two steps. The rate on record is that of old entries."""
    plan = saved_recipe(RunDir(apart)).phases[1].growth.plan
    old, is_new = weights_at(apart, 4), plan.is_new()
    start = {name: weight[~is_new[name]] for name, weight in plan.weights(old)}
    for step, stays in ((5, True), (6, True), (7, False)):
        now = weights_at(apart, step)
        assert all(torch.equal(now[name][~is_new[name]], weight) for name, weight in start.items()) == stays
    new = weights_at(apart, 5)["layers.0.ffn.w_down.weight"]
    assert new[:, old["layers.0.ffn.w_down.weight"].shape[1] :].any()  # it began at 0
    recipe, plain = saved_recipe(RunDir(apart)), tiny_recipe(*APART, "growth=[]")
    assert [recipe.lr_factor(step) for step in range(1, 10)] == [plain.lr_factor(step) for step in range(1, 10)]


def test_update_norms_are_those_of_what_has_moved(tmp_path: Path) -> None:
    """While old entries wait and after."""
    run = tmp_path / "run"
    train(tiny_recipe(*APART, "train.norms_every=1"), run)
    recorded = {record["step"]: record["update_norms"] for record in RunDir(run).metrics() if "update_norms" in record}
    for step in (6, 7):
        before, after = weights_at(run, step - 1), weights_at(run, step)
        for layer, norm in enumerate(recorded[step]):
            names = [name for name in after if name.startswith(f"layers.{layer}.")]
            moved = sum((after[name] - before[name]).double().square().sum() for name in names)
            assert norm == pytest.approx(float(moved) ** 0.5, rel=1e-4)


def test_a_run_that_was_grown_learns_apart_and_resumes_to_the_bit(apart: Path, tmp_path: Path) -> None:
    source = RunCheckpoint.of(unfinished_copy(apart, tmp_path / "source", 4))
    wider = ["model.layers.1.ffn.d_ff=80"]
    wanted = wanted_recipe(source, None, wider)
    alike = growth_intended(source, wanted, GrowOptions()).recipe.rewarmup
    options = GrowOptions(rewarmup_steps=4, freeze_steps=2)
    differ = growth_intended(source, wanted, options).recipe.rewarmup
    assert (alike and alike.grown_from, differ and differ.grown_from) == (None, source.model)
    grow_run(source.run.path, tmp_path / "grown", overrides=wider, options=options)
    resume(tmp_path / "grown")
    old = weights_at(tmp_path / "source", 4)
    for step, stays in ((6, True), (7, False)):
        now = weights_at(tmp_path / "grown", step)["layers.1.ffn.w_up.weight"][:64]
        assert torch.equal(now, old["layers.1.ffn.w_up.weight"]) == stays
    resumed_alike(tmp_path / "grown", tmp_path, 5, 7)


def test_growths_whose_entries_would_have_rates_of_two_growths_are_refused() -> None:
    def check(first: str, *others: str) -> None:
        tiny_recipe(UNIFORM, f"growth=[{', '.join((first, *others))}]").check()

    deeper = "{at_step: 4, model: {n_layers: 5}}"
    check("{at_step: 2, model: {}, freeze_steps: 2, rewarmup_steps: 0}", deeper)
    last = "{at_step: 5, model: {}, freeze_steps: 5}"
    assert "growth.0: freeze_steps: got 5; the run has only 4 more steps" in refusal(check, last)
    frozen = "growth.1: comes after step 4; the old entries of the growth after step 2 are frozen until step 5"
    assert frozen in refusal(check, "{at_step: 2, model: {}, freeze_steps: 3}", deeper)
