"""Width scores trained when everything else has been: by growth that freezes the old entries."""

import torch
from safetensors.torch import load_file
from tiny_runs import outcome, tiny_recipe, unfinished_copy

from widthwise.run_dir import RunDir
from widthwise.runs.train import resume, train

PLAIN = "model.ffn={kind: dynamic, min_fraction: 0.25, ratio: 9.0, mask: {kind: none}}"
AFTERWARDS = (
    "growth=[{at_step: 4, model: {ffn: {mask: {kind: ste}}}, freeze_steps: 5, rewarmup_steps: 0}]",
    "train.width_budget={kind: penalty, weight: 5.0}",
)
CHOICE = ("ffn.score.v.weight", "ffn.score.log_gain.weight", "ffn.bias.weight")


def weights_of(run, step):
    return load_file(run / f"checkpoints/step_{step:08d}/model.safetensors")


def test_only_the_scores_of_a_trained_model_learn_what_width_costs(tmp_path):
    run = tmp_path / "run"
    result = train(tiny_recipe(PLAIN, *AFTERWARDS), run)
    before, after = weights_of(run, 4), weights_of(run, 9)
    assert {name for name in after if name not in before} == {f"layers.{i}.{name}" for i in range(3) for name in CHOICE}
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    (growth,) = result.growth
    assert growth.loss_before == growth.loss_after
    assert 0.25 < result.token_widths.mean_fraction < 0.999
    assert any(after[f"layers.{i}.{CHOICE[0]}"].any() for i in range(3))


def test_such_a_run_is_resumed_bit_by_bit(tmp_path):
    train(tiny_recipe(PLAIN, *AFTERWARDS), tmp_path / "whole")
    run = unfinished_copy(tmp_path / "whole", tmp_path / "run", 6)
    resume(run)
    assert outcome(run) == outcome(tmp_path / "whole")
    assert RunDir(run).result()["growth"]
