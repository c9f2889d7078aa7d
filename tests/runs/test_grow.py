import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from boxes import refusal
from safetensors.torch import load_file
from tiny_runs import records, tiny_recipe, unfinished_copy

from widthwise.growth import tensor_plan
from widthwise.growth.choices import NewSizes
from widthwise.recipe.recipe import saved_recipe
from widthwise.records.record import SealedFile
from widthwise.run_dir import RunDir
from widthwise.runs.grow import GrowOptions, grow_run, plan_run_growth, target_recipe
from widthwise.runs.open import RunCheckpoint
from widthwise.runs.train import resume, train
from widthwise.training.checkpoint_folder import checkpoint_paths, find_damage

STEP = 5
WIDER = ("model.layers.1.ffn.d_ff=40", "model.layers.2.ffn.d_ff=110")


@pytest.fixture(scope="module")
def finished(trained) -> Path:
    return trained("train.max_grad_norm=1e9")


@pytest.fixture
def source(finished: Path, tmp_path: Path) -> RunCheckpoint:
    """The run as it was after a kill at STEP."""
    return RunCheckpoint.of(unfinished_copy(finished, tmp_path / "source", STEP))


def grown(source: RunCheckpoint, out: Path | None, *overrides: str, **options: Any) -> dict[str, Any]:
    return grow_run(source.run.path, out, overrides=overrides, options=GrowOptions(**options))


def state_json(path: Path) -> dict[str, Any]:
    return json.loads((checkpoint_paths(path / "checkpoints")[0] / "state.json").read_text())


def tensors(path: Path, name: str) -> dict[str, torch.Tensor]:
    return load_file(checkpoint_paths(path / "checkpoints")[0] / f"{name}.safetensors")


def test_a_grown_run_trains_on_where_the_old_one_stood_with_its_weights_and_moments(source, tmp_path: Path) -> None:
    found = grown(source, tmp_path / "grown", *WIDER)
    run = RunDir(tmp_path / "grown")
    assert (found["step"], found["certificate"]["is_preserved"]) == (STEP, True)
    assert SealedFile(run.path / "certificate.json").read() == found["certificate"]
    assert find_damage(checkpoint_paths(run.checkpoints)[0]) is None
    assert [layer.ffn.d_ff for layer in saved_recipe(run).explicit_model.layers[1:]] == [40, 110]
    before, after = state_json(source.run.path), state_json(run.path)
    assert after["loader"] == before["loader"]
    assert after["recent_losses"] == before["recent_losses"]
    assert torch.equal(tensors(run.path, "rng")["cpu"], tensors(source.run.path, "rng")["cpu"])
    name, n_old = "layers.1.ffn.w_gate.weight", source.model.layers[1].ffn.hidden_widths[0]
    assert torch.equal(tensors(run.path, "model")[name][:n_old], tensors(source.run.path, "model")[name])
    old, new = (tensors(path, "optimizer") for path in (source.run.path, run.path))
    for part in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(new[f"{name}.{part}"][:n_old], old[f"{name}.{part}"])
    assert new[f"{name}.step"] == STEP
    *earlier, last = run.metrics()
    assert (last["step"], last["event"]) == (earlier[-1]["step"], "grown") == (STEP, "grown")
    assert earlier == [record for record in source.run.metrics() if record["step"] <= STEP]
    result = resume(run.path)
    assert result["steps"] == 9
    assert result["cost"]["params"]["total"] == found["after"]["params"]
    assert any("grown from source after step 5" in note for note in result["notes"])
    assert run.metrics()[: len(earlier) + 1] == [*earlier, last]


def test_a_larger_batch_goes_on_behind_the_windows_seen_and_other_data_begin_anew(source, tmp_path: Path) -> None:
    found = grown(source, tmp_path / "grown", *WIDER, "train.batch_size=6")
    assert state_json(tmp_path / "grown")["loader"]["step"] == 4  # 5 batches of 4 are 20 windows, and 3 of 6 are 18
    assert not any("restarted" in note for note in found["notes"])
    assert resume(tmp_path / "grown")["steps"] == 9
    other = grown(source, tmp_path / "other", *WIDER, "train.seed=4")
    assert state_json(tmp_path / "other")["loader"]["step"] == 0
    assert "data restarted from the beginning: seed changed" in other["notes"]


def test_constants_that_stay_change_where_that_is_allowed(source, tmp_path: Path) -> None:
    wider_heads = ["model.layers.1.attention.head_dim=12", "model.layers.1.attention.scale=0.25"]
    planned = grown(source, None, *wider_heads)
    assert any(line.startswith("layer 2: attention.scale stays 0.353553 (") for line in planned["constants"])
    assert planned["changes"] == []
    allowed = grown(source, tmp_path / "changed", *wider_heads, allow_change=True)
    assert "layer 2: attention.scale 0.353553 -> 0.25" in allowed["changes"]
    assert allowed["constants"] == []
    assert not allowed["certificate"]["is_preserved"]
    assert saved_recipe(RunDir(tmp_path / "changed")).explicit_model.layers[1].attention.scale == 0.25


def test_a_model_that_would_not_compute_the_same_is_not_written(source, tmp_path: Path, monkeypatch) -> None:
    filled = tensor_plan.filled

    def fill(tensor: torch.Tensor, entries: Iterable[torch.Tensor], value: float) -> torch.Tensor:
        return filled(tensor, entries, 0.1 if value == 0.0 else value)

    monkeypatch.setattr(tensor_plan, "filled", fill)
    message = "the grown model would not compute the same: logits differ by"
    assert message in refusal(grown, source, tmp_path / "grown", *WIDER)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_what_cannot_be_is_refused_before_anything_is_written(source: RunCheckpoint, tmp_path: Path) -> None:
    for override, message in (
        ("model.layers.1.ffn.d_ff=3", "growth takes nothing away"),
        ("model.n_layers=5", "has explicit layers and no rule"),
        ("model.residual={kind: virtual, width: 1.5}", "as --to RECIPE 'model.residual={kind: virtual, width: 1.5}'"),
        ("train.n_layers=5", "train.n_layers: unknown key"),
        ("train.steps=4", f"train.steps: got 4; must be at least 5, the steps that {source.run.path} has made"),
        ("model.vocab_size=300", "vocab_size: got 300 where it was 257"),
        ("growth=[{at_step: 3, model: {d_model: 32}}]", "growth.0"),
        ("growth=[{at_step: 5, model: {}}]", f"at_step must be above 5, the step that {source.run.path} has reached"),
    ):
        assert message in refusal(grown, source, tmp_path / "grown", *WIDER, override)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_a_tied_model_gets_a_virtual_width_with_the_embedding_that_the_changes_name(trained) -> None:
    source = RunCheckpoint.of(trained("model.shape={kind: uniform}", "model.tie_embeddings=true", name="tied"))
    wider = NewSizes(virtual_width=1.5)
    found = target_recipe(source, None, ["model.residual.embedding=pad"], wider).explicit_model.residual
    assert (found.kind, found.embedding, found.stream_width) == ("hyper_connections", "pad", 1.5 * source.model.d_model)
    assert "embedding: " in refusal(target_recipe, source, None, [], wider)


def test_every_step_is_counted_with_the_model_and_the_batch_that_made_it(source: RunCheckpoint, tmp_path: Path) -> None:
    grown(source, tmp_path / "grown", *WIDER, "train.batch_size=6", "train.steps=7")
    first = resume(tmp_path / "grown")
    checkpoint = RunCheckpoint.of(tmp_path / "grown")
    grown(checkpoint, tmp_path / "larger", "model.layers.1.ffn.d_ff=64", "train.steps=9", rewarmup_steps=0)
    last = resume(tmp_path / "larger")
    models = (source.model, checkpoint.model, RunCheckpoint.of(tmp_path / "larger").model)
    per_token = [model.cost().training_flops(17) for model in models]
    assert per_token[0] < per_token[1] < per_token[2]
    assert first["tokens"] == (5 * 4 + 2 * 6) * 17
    assert first["training_flops"] == 5 * 4 * 17 * per_token[0] + 2 * 6 * 17 * per_token[1]
    assert (last["steps"], last["tokens"]) == (9, first["tokens"] + 2 * 6 * 17)
    assert last["training_flops"] == first["training_flops"] + 2 * 6 * 17 * per_token[2]
    assert last["pflops_days"] == pytest.approx(last["training_flops"] / 8.64e19)
    tokens = [record["tokens"] for record in records(tmp_path / "larger", "train")]
    assert tokens == sorted(tokens)
    assert tokens[-1] == last["tokens"]


def test_a_run_that_grew_grows_from_the_model_of_its_checkpoint(tmp_path: Path) -> None:
    event = "{{at_step: {}, rewarmup_steps: 0, model: {{ffn: {{kind: swiglu, ratio: {}}}}}}}".format
    train(tiny_recipe(f"growth=[{event(3, 4.0)}, {event(8, 5.0)}]"), tmp_path / "whole")
    source = RunCheckpoint.of(unfinished_copy(tmp_path / "whole", tmp_path / "source", STEP))
    assert source.model == source.recipe.phases[1].model
    found = grown(source, tmp_path / "grown", "model.layers.1.ffn.d_ff=99")
    assert any("left out: the growth that the run would have made after step 8" in note for note in found["notes"])
    assert resume(tmp_path / "grown")["steps"] == 9


def test_rates_rise_again_behind_a_growth(source: RunCheckpoint) -> None:
    """Over the steps that the optimizer looks back, but no more than are left, or over those asked for."""
    wanted = target_recipe(source, None, WIDER)
    n_left = wanted.train.steps - STEP
    for options, n_steps in (({}, n_left), ({"rewarmup_steps": 2}, 2), ({"rewarmup_steps": 0}, 1)):
        found = plan_run_growth(source, wanted, GrowOptions(**options)).recipe
        ratios = [found.lr_factor(step) / wanted.lr_factor(step) for step in range(1, wanted.train.steps + 1)]
        expected = [1.0] * STEP + [min(1.0, (i + 1) / n_steps) for i in range(n_left)]
        assert ratios == pytest.approx(expected)
