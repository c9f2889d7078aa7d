"""Runs whose model grows: nothing is lost across a growth, and nothing by a kill around it."""

from pathlib import Path

import pytest
import torch
from growing_runs import BUDGET, DEEPER, DYNAMIC, GROWING, MUON, TWICE, UNIFORM
from one_step import INPUTS, TARGETS
from thinned import hard_but
from tiny_runs import Listener, outcome, records, resumed_alike, step_config, tiny_recipe, unfinished_copy, weights_at

from widthwise.model.compiling import compile_layers
from widthwise.model.decoder import Decoder, build
from widthwise.recipe.objective import WidthBudgetConfig
from widthwise.recipe.recipe import Recipe
from widthwise.run_dir import RunDir
from widthwise.runs.open import open_model
from widthwise.runs.train import resume, train
from widthwise.training import growth_step
from widthwise.training import train_state as train_state_module
from widthwise.training.growth_step import state_by_name
from widthwise.training.objective import carried_state
from widthwise.training.processes import ALONE
from widthwise.training.train_state import assembled


@pytest.fixture(scope="module")
def grown_twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, listener, told = tmp_path_factory.mktemp("growing") / "run", Listener(), []
    listener.record = told.append
    train(tiny_recipe(TWICE), path, listener)
    assert [record["step"] for record in told if record["event"] == "growth"] == [4, 7]
    return path


ModelAndOptimizer = tuple[Decoder, torch.optim.Optimizer]
FEW = ("muon, bf16", "dynamic", "experts")
"""Kinds of growth that `make test` trains; `make test-hard` trains all."""


def stepped(recipe: Recipe, n_steps: int) -> ModelAndOptimizer:
    """The first model of a run and its optimizer, after some steps."""
    model = build(recipe.explicit_model, seed=1)
    optimizer = recipe.optimizer.build(model)
    for _ in range(n_steps):
        model.loss(INPUTS, TARGETS).objective.backward()
        optimizer.step()
    return model, optimizer


def grow(recipe: Recipe, smaller: ModelAndOptimizer, seed: int = 3) -> ModelAndOptimizer:
    """The larger model and its optimizer."""
    larger = assembled(recipe.final_model, step_config(), ALONE)
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
    assert result["cost"]["widths"] == [32, 24, 24, 24, 32]
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
    smaller, is_new = stepped(recipe, 0), recipe.phases[1].growth.plan.is_new()["layers.0.ffn.w_gate.weight"]
    first, again, other = (grow(recipe, smaller, seed)[0].layers[0].ffn.w_gate.weight for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert torch.equal(first != other, is_new)


@pytest.mark.parametrize("optimizer", ["optimizer={kind: adamw, lr: 0.01}", MUON])
def test_old_entries_keep_their_moments_bit_for_bit(optimizer: str) -> None:
    """Rows are counted by hand: the first d_ff rows of w_gate are the old ones, an added layer starts without state."""
    growth = "growth=[{at_step: 4, model: {n_layers: 5, ffn: {kind: swiglu, ratio: 5}}, layers: [0, null, 1, null, 2]}]"
    recipe = tiny_recipe(UNIFORM, optimizer, growth)
    model, before = stepped(recipe, 3)
    old = {
        name: {part: value.clone() for part, value in each.items()}
        for name, each in state_by_name(model, before).items()
    }
    grown, after = grow(recipe, (model, before))
    new = state_by_name(grown, after)
    places = [{part.data_ptr() for parts in each.state.values() for part in parts.values()} for each in (before, after)]
    assert not places[0] & places[1]
    d_ff = recipe.explicit_model.layers[0].ffn.d_ff
    for old_layer, new_layer in ((0, 0), (1, 2), (2, 4)):
        for name in ("attention.w_q.weight", "attention.norm.weight", "ffn.w_gate.weight"):
            moments = old[f"layers.{old_layer}.{name}"]
            assert moments
            for part, value in moments.items():
                found = new[f"layers.{new_layer}.{name}"][part]
                assert torch.equal(found[:d_ff] if name.startswith("ffn") and found.dim() else found, value)
    assert all(name in new for name in ("embedding.weight", "head.weight"))
    assert not [name for name in new if name.startswith(("layers.1.", "layers.3."))]


def test_a_budget_keeps_its_price_and_a_new_one_starts_at_0() -> None:
    plan = tiny_recipe(UNIFORM, DYNAMIC, BUDGET, f"growth=[{{at_step: 4, model: {DEEPER}}}]").phases[1].growth.plan
    priced, free = (step_config(width_budget=each) for each in (WidthBudgetConfig(target=0.5), None))
    assert carried_state([2.0], priced, priced, plan) == [2.0]
    assert carried_state([], free, priced, plan) == [0.0]
    assert carried_state([2.0], priced, free, plan) == []


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
    assert {name for name in after if name not in before} == {f"layers.{i}.{name}" for i in range(3) for name in CHOICE}
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    (growth,) = result.growth
    assert growth.loss_before == growth.loss_after
    assert 0.25 < result.token_widths.mean_fraction < 0.999
    assert any(after[f"layers.{i}.{CHOICE[0]}"].any() for i in range(3))
