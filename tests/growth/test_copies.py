"""Baselines of growth: hidden units and layers that are copies."""

from pathlib import Path

import expansions
import pytest
import torch
from growth_cases import SLOTS, Measured, difference, pulled_back, small_model, tokens_for, with_random_weights
from tiny_runs import outcome, tiny_recipe, unfinished_copy

from widthwise.config_io import UserError
from widthwise.growth.describe import expansions as in_words
from widthwise.growth.maps.correspondence import Correspondence
from widthwise.growth.plan.model_plan import plan_growth
from widthwise.recipe.models import build, grow_model
from widthwise.run_dir import RunDir
from widthwise.runs.train import resume, train

MLP = {"ffn": {"kind": "mlp", "activation": "relu2", "bias": True, "d_ff": 5}}
MOE = {"ffn": {"kind": "moe", "n_experts": 3, "top_k": 2, "d_expert": 4}}
HOURGLASS = {"ffn": {"kind": "hourglass", "n_blocks": 2, "d_hidden": 4, "share_weights": True}}
UNIFORM = ("model.shape={kind: uniform}", "train.checkpoint_every=1")
STACKED = "growth=[{at_step: 4, model: {n_layers: 6}, new_layers: stacked, preserve: false}]"


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("changes", "n_units"), [({}, 30), (MLP, 10), (MOE, 12), (HOURGLASS, 8), ({"norm": {"placement": "reordered"}}, 20)]
)
def test_copies_of_units_share_their_output_and_then_part(changes: dict, n_units: int) -> None:
    config = small_model(**changes)
    plan = plan_growth(config, *expansions.widen_ffn(config, [1], n_units), new_weights="copied")
    weights, tokens = with_random_weights(config, 1), tokens_for(1, batch=4)
    leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    grown = dict(plan.weights(leaves, 2))
    values = {name: weight.detach() for name, weight in grown.items()}
    before, after = Measured(config, weights, tokens), Measured(plan.new, values, tokens)
    assert difference(before.logits, after.logits) <= 1e-12
    largest = max(gradient.abs().max() for gradient in before.gradients.values())
    for name, gradient in pulled_back(leaves, grown, after.gradients).items():
        assert (gradient - before.gradients[name]).abs().max() <= 1e-11 * largest, name
    name = next(name for name in values if name.startswith("layers.1.ffn") and name.endswith("w_up.weight"))
    up, slope = values[name], after.gradients[name]
    assert torch.equal(up[0], up[1])
    assert not torch.allclose(slope[0], slope[1], rtol=1e-3, atol=0)


def test_units_that_cannot_be_copied_are_refused() -> None:
    for changes, n_units, message in [
        ({}, 15, "layers.1.ffn.w_gate: got 15 hidden units, copies of 10 (new_weights: copied); must be a multiple"),
        ({"ffn": {"kind": "dynamic", "d_ff": 9}}, 18, "units cannot be copied into feed-forward `dynamic`"),
    ]:
        config = small_model(**changes)
        with pytest.raises(UserError) as raised:
            plan_growth(config, *expansions.widen_ffn(config, [1], n_units), new_weights="copied")
        assert message in str(raised.value)


@pytest.mark.parametrize(
    ("new_layers", "layers", "sources", "changes"),
    [
        ("stacked", (0, 1, 2, None, None, None, None), (0, 1, 2, 0, 1, 2, 0), {}),
        ("duplicated", (0, None, 1, None, 2, None), (0, 0, 1, 1, 2, 2), SLOTS),
    ],
)
def test_layers_are_whole_copies_of_others(new_layers, layers, sources, changes) -> None:
    config, wanted = small_model(**changes), small_model(n_layers=len(layers), **changes)
    plan = plan_growth(config, wanted, Correspondence(layers), new_layers)
    weights = with_random_weights(config, 0)
    new, is_new = dict(plan.weights(weights)), plan.is_new()
    for j, source in enumerate(sources):
        of_layer = [name for name in new if name.startswith(f"layers.{j}.")]
        assert len(of_layer) == len([name for name in weights if name.startswith("layers.0.")])
        for name in of_layer:
            assert torch.equal(new[name], weights[name.replace(f"layers.{j}.", f"layers.{source}.")])
            assert is_new[name].all() == (layers[j] is None)
    assert any("a whole copy, which changes the function" in line for line in in_words(plan))


def test_what_changes_the_function_must_be_asked_for() -> None:
    with pytest.raises(
        UserError, match=r"growth\.0: new_layers: got stacked, which changes .* it needs preserve: false"
    ):
        tiny_recipe(*UNIFORM, STACKED.replace(", preserve: false", "")).check()
    recipe = tiny_recipe(*UNIFORM)
    with pytest.raises(UserError, match="new_layers: got duplicated, which changes the function"):
        grow_model(build(recipe), tiny_recipe(*UNIFORM, "model.n_layers=6"), new_layers="duplicated")


def test_a_run_is_stacked_and_resumes_to_the_bit(tmp_path: Path) -> None:
    recipe = tiny_recipe(*UNIFORM, STACKED)
    assert recipe.phases[1].growth.plan.correspondence.layers == (0, 1, 2, None, None, None)
    train(recipe, tmp_path / "run")
    (record,) = [each for each in RunDir(tmp_path / "run").metrics() if each["event"] == "growth"]
    assert record["loss_after"] != pytest.approx(record["loss_before"], abs=1e-4)
    for step in (4, 6):
        copy = unfinished_copy(tmp_path / "run", tmp_path / f"from_{step}", step)
        resume(copy)
        assert outcome(copy) == outcome(tmp_path / "run")
