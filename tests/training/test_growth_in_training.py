"""Runs whose model grows: nothing is lost across a growth or by a kill around it, and old entries can be frozen."""

import copy
from pathlib import Path

import pytest
import torch
from boxes import refusal
from growing_runs import APART, BUDGET, DEEPER, DYNAMIC, GROWING, MUON, TWICE, UNIFORM
from one_step import INPUTS, TARGETS
from thinned import hard_but
from tiny_runs import outcome, records, resumed_alike, step_config, tiny_recipe, unfinished_copy, weights_at

from widthwise.growth.plan import grown_states
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder, build
from widthwise.model.execution import compile_layers
from widthwise.recipe.growth_events import Rewarmup
from widthwise.recipe.recipe import Recipe, saved_recipe
from widthwise.run_dir import RunDir
from widthwise.runs.grow import GrowOptions, grow_run, plan_run_growth, target_recipe
from widthwise.runs.open import RunCheckpoint, open_model
from widthwise.runs.train import resume, train
from widthwise.training import growth_step
from widthwise.training import train_state as train_state_module
from widthwise.training.growth_step import FrozenEntries, state_by_name
from widthwise.training.processes import ALONE
from widthwise.training.state import RunState
from widthwise.training.train_state import TrainState, build_uninitialised


@pytest.fixture(scope="module")
def grown_twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("growing") / "run"
    train(tiny_recipe(TWICE), path)
    return path


ADAMW = "optimizer={kind: adamw, lr: 0.01}"
ModelAndOptimizer = tuple[Decoder, torch.optim.Optimizer]
FEW = ("muon, bf16", "dynamic", "experts")
"""Kinds of growth that `make test` trains; `make test-hard` trains all."""


def stepped(recipe: Recipe, config: ModelConfig) -> ModelAndOptimizer:
    """A model and its optimizer, after two steps."""
    model = build(config, seed=1)
    optimizer = recipe.optimizer.build(model)
    for _ in range(2):
        model.loss(INPUTS, TARGETS).objective.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def grow(recipe: Recipe, smaller: ModelAndOptimizer, seed: int = 3) -> ModelAndOptimizer:
    """The larger model and its optimizer."""
    larger = build_uninitialised(recipe.final_model, step_config(), ALONE)
    grown = larger, recipe.optimizer_of(recipe.phases[1]).build(larger)
    growth_step.grow(smaller, grown, recipe.phases[1].growth, seed)
    return grown


@pytest.mark.parametrize("kind", hard_but(FEW, GROWING))
def test_growth_keeps_the_held_out_loss_and_is_resumed_bitwise(kind: str, tmp_path: Path) -> None:
    train(tiny_recipe(*GROWING[kind]), tmp_path / "whole")
    growths = records(tmp_path / "whole", "growth")
    assert len(growths) in (1, 2)
    for record in growths:
        # Sums of fp32 products in another order; in bf16 they are rounded to 8 bits, and tend to agree bitwise.
        assert record["loss_after"] == pytest.approx(record["loss_before"], abs=1e-6)
        assert record["params_after"] > record["params_before"]
    resumed_alike(tmp_path / "whole", tmp_path, 4, 6)


def test_a_kill_around_a_growth_leaves_one_record_of_it(grown_twice: Path, tmp_path: Path) -> None:
    """The checkpoint of a growth's step holds the model before it; the metrics may have the growth already."""
    for step, widths in ((4, [24, 8, 24]), (5, [32, 24, 24, 24, 32])):
        run = unfinished_copy(grown_twice, tmp_path / str(step), step)
        assert open_model(run).model.config.widths == widths
        assert records(run, "growth")
        resume(run)
        assert [record["step"] for record in records(run, "growth")] == [4, 7]
        assert outcome(run) == outcome(grown_twice)


def test_the_result_holds_the_last_model_and_the_compute_of_all(grown_twice: Path) -> None:
    result, recipe = RunDir(grown_twice).result(), tiny_recipe(TWICE)
    assert result["cost"]["flops_per_token"]["training"] == recipe.final_model.cost().training_flops(17)
    assert result["training_flops"] == recipe.training_flops
    assert result["tokens"] == 9 * 4 * 17
    per_token = [recipe.model_at(step).cost().training_flops(17) for step in (4, 7)]
    first, second = result["growth"]
    assert (first["step"], first["tokens"], first["training_flops"]) == (4, 4 * 68, 4 * 68 * per_token[0])
    assert second["training_flops"] == first["training_flops"] + 3 * 68 * per_token[1]
    assert first["params_after"] == second["params_before"]


def test_seeds_draw_other_entries_and_one_seed_the_same() -> None:
    recipe = tiny_recipe(UNIFORM, "growth=[{at_step: 4, model: {ffn: {kind: swiglu, ratio: 5}}}]")
    smaller = stepped(recipe, recipe.explicit_model)
    first, again, other = (grow(recipe, smaller, seed)[0].layers[0].ffn.w_gate.weight for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert torch.equal(first != other, recipe.phases[1].growth.plan.is_new()["layers.0.ffn.w_gate.weight"])


@pytest.mark.parametrize("optimizer", [ADAMW, MUON])
def test_the_larger_optimizer_has_a_copy_of_the_grown_state(optimizer: str) -> None:
    growth = "growth=[{at_step: 4, model: {n_layers: 5, ffn: {kind: swiglu, ratio: 5}}, layers: [0, null, 1, null, 2]}]"
    recipe = tiny_recipe(UNIFORM, optimizer, growth)
    model, before = stepped(recipe, recipe.explicit_model)
    expected = dict(grown_states(recipe.phases[1].growth.plan, state_by_name(model, before)))
    grown, after = grow(recipe, (model, before))
    found = state_by_name(grown, after)
    assert found.keys() == expected.keys()
    assert all(torch.equal(value, expected[name][part]) for name in found for part, value in found[name].items())
    places = [{part.data_ptr() for parts in each.state.values() for part in parts.values()} for each in (before, after)]
    assert not places[0] & places[1]
    assert {"embedding.weight", "head.weight", "layers.4.attention.w_q.weight"} <= found.keys()
    assert not [name for name in found if name.startswith(("layers.1.", "layers.3."))]


def test_a_budget_keeps_its_price_and_a_new_one_starts_at_0() -> None:
    recipe = tiny_recipe(UNIFORM, DYNAMIC, BUDGET, f"growth=[{{at_step: 4, model: {DEEPER}}}]")
    priced, new = (TrainState.untrained(recipe, recipe.phases[0]) for _ in range(2))
    priced.objective.load_state([2.0])
    assert priced.grown(recipe.phases[1]).objective.state() == [2.0]
    assert priced.objective.state() == [2.0]
    new.load(RunState(window_steps=1))  # as of a run that another verb wrote
    assert new.grown(recipe.phases[1]).objective.state() == [0.0]


@pytest.mark.hard
def test_compiled_layers_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def compile_in_seconds(model) -> None:
        compiled.append(model.config.n_layers)
        compile_layers(model, "eager")

    monkeypatch.setattr(train_state_module, "compile_layers", compile_in_seconds)
    growth = f"growth=[{{at_step: 4, model: {DEEPER}}}]"
    train(tiny_recipe(UNIFORM, growth, "train.compile=true", "train.checkpoint_every=null"), tmp_path / "run")
    assert compiled == [3, 5]


AFTERWARDS = (
    "model.ffn={kind: dynamic, min_fraction: 0.25, ratio: 9.0, mask: {kind: none}}",
    "growth=[{at_step: 4, model: {ffn: {mask: {kind: ste}}}, freeze_steps: 5, rewarmup_steps: 0}]",
    "train.width_budget={target: 0.3, damping: 5.0}",
)
CHOICE = ("ffn.score.v.weight", "ffn.score.log_gain.weight", "ffn.bias.weight")


def test_only_the_scores_of_a_trained_model_learn_what_width_costs(tmp_path):
    run = tmp_path / "run"
    result = train(tiny_recipe(*AFTERWARDS), run)
    before, after = weights_at(run, 4), weights_at(run, 9)
    assert after.keys() - before.keys() == {f"layers.{i}.{name}" for i in range(3) for name in CHOICE}
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    (growth,) = result.growth
    assert growth.loss_before == growth.loss_after
    assert 0.25 < result.token_widths.mean_fraction < 0.999


WIDER = "growth=[{at_step: 2, model: {n_layers: 5, ffn: {kind: swiglu, ratio: 5}}}]"


@pytest.mark.parametrize(("overrides", "done"), [(ADAMW, 1), (MUON, 2), (MUON, 3)])
def test_frozen_entries_stay_and_others_and_all_moments_move_as_in_any_step(overrides: str, done: int) -> None:
    recipe = tiny_recipe(UNIFORM, overrides, WIDER)
    plan = recipe.phases[1].growth.plan
    rewarmup = Rewarmup(after_step=10, steps=0, freeze_steps=2)
    model, optimizer = stepped(recipe, plan.new)
    usual, usual_optimizer = stepped(recipe, plan.new)
    for each in (model, usual):
        each.loss(INPUTS, TARGETS).objective.backward()
    usual_optimizer.step()
    before, is_new = copy.deepcopy(model.state_dict()), plan.is_new()
    with FrozenEntries(model, rewarmup, plan).applied(rewarmup.after_step + done):
        optimizer.step()
    for (name, parameter), moved in zip(model.named_parameters(), usual.parameters()):
        of_old = before[name] if done <= 2 else moved
        assert torch.equal(parameter, torch.where(is_new[name], moved, of_old))
        assert not torch.equal(moved, before[name])
        for part, value in usual_optimizer.state[moved].items():
            assert torch.equal(optimizer.state[parameter][part], value)


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("apart") / "run"
    train(tiny_recipe(*APART, "train.norms_every=1"), path)
    return path


def test_old_entries_stay_bit_for_bit_until_they_are_let_go(apart: Path) -> None:
    """APART grows after step 4 and freezes old entries for two steps. The recorded rate is the rate of old entries."""
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


def test_update_norms_are_those_of_what_has_moved(apart: Path) -> None:
    """Both while old entries are frozen (step 6) and afterwards (step 7)."""
    recorded = {record["step"]: record["update_norms"] for record in records(apart, "norms")}
    for step in (6, 7):
        before, after = weights_at(apart, step - 1), weights_at(apart, step)
        for layer, norm in enumerate(recorded[step]):
            names = [name for name in after if name.startswith(f"layers.{layer}.")]
            moved = sum((after[name] - before[name]).double().square().sum() for name in names)
            assert norm == pytest.approx(float(moved) ** 0.5, rel=1e-4)


def test_a_run_that_was_grown_learns_apart_and_resumes_to_the_bit(apart: Path, tmp_path: Path) -> None:
    source = RunCheckpoint.of(unfinished_copy(apart, tmp_path / "source", 4))
    wider = ["model.layers.1.ffn.d_ff=80"]
    wanted = target_recipe(source, None, wider)
    alike = plan_run_growth(source, wanted, GrowOptions()).recipe.rewarmup
    options = GrowOptions(rewarmup_steps=4, freeze_steps=2)
    differ = plan_run_growth(source, wanted, options).recipe.rewarmup
    assert (alike and alike.grown_from, differ and differ.grown_from) == (None, source.model)
    grow_run(source.run.path, tmp_path / "grown", overrides=wider, options=options)
    resume(tmp_path / "grown")
    old = weights_at(tmp_path / "source", 4)
    for step, stays in ((6, True), (7, False)):
        now = weights_at(tmp_path / "grown", step)["layers.1.ffn.w_up.weight"][:64]
        assert torch.equal(now, old["layers.1.ffn.w_up.weight"]) == stays
    resumed_alike(tmp_path / "grown", tmp_path, 5, 7)


def test_growths_whose_entries_would_have_rates_of_two_growths_are_refused() -> None:
    def check(freeze_steps: int) -> None:
        first = f"{{at_step: 2, model: {{}}, freeze_steps: {freeze_steps}, rewarmup_steps: 0}}"
        tiny_recipe(UNIFORM, f"growth=[{first}, {{at_step: 4, model: {{n_layers: 5}}}}]").check()

    check(2)
    frozen = "growth.1: comes after step 4; the old entries of the growth after step 2 are frozen until step 5"
    assert frozen in refusal(check, 3)
    assert "growth.0: freeze_steps: got 8; the run has only 7 more steps" in refusal(check, 8)
