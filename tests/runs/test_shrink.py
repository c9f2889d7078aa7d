"""`shrink`: a run out of a run, which heals like any other."""

import math
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from boxes import refusal
from safetensors import SafetensorError

from widthwise.growth.choices import NewSizes, ShrinkOptions
from widthwise.growth.shrink import LEFT_OUT, LayerSizes, layer_sizes, smaller_config
from widthwise.recipe.recipe import load_recipe, saved_recipe
from widthwise.records.shrinking import Shrinking
from widthwise.run_dir import RunDir
from widthwise.runs.evaluate import evaluate_run
from widthwise.runs.grow import grow_run
from widthwise.runs.open import open_model
from widthwise.runs.save import save_run
from widthwise.runs.shrink import shrink_run
from widthwise.runs.train import resume

CUT = ShrinkOptions(flops=0.7, calibration_batches=2, multiple=4)
UNIFORM = ("model.shape={kind: uniform}", "model.d_model=24", "train.checkpoint_every=9")


@pytest.fixture(scope="module")
def parent(trained) -> Path:
    return trained(*UNIFORM, name="parent")


def sizes_after(cut: Shrinking) -> list[LayerSizes]:
    return [
        LayerSizes(*(size[1] for size in (each.d_model, each.n_kv_heads, each.n_hidden, each.n_experts)))
        for each in cut.layers
    ]


def test_a_smaller_run_is_written_and_heals(parent: Path, tmp_path: Path) -> None:
    out = tmp_path / "small"
    found = shrink_run(parent, out, CUT, ["train.steps=6", "train.validate_every=3"])
    assert found == Shrinking.read(out)
    model = saved_recipe(RunDir(out)).explicit_model
    assert found.turned
    assert found.not_turned is None
    assert found.after.flops_per_token <= 0.7 * found.before.flops_per_token
    assert found.after.params == model.cost().params
    assert [layer.d_model[1] for layer in found.layers] == model.widths
    assert [layer.n_hidden[1] for layer in found.layers] == [layer.ffn.hidden_widths[0] for layer in model.layers]
    assert 0 <= found.agreement <= 1
    resume(out)
    losses = [each["loss"] for each in RunDir(out).metrics() if each.get("event") == "validation"]
    assert losses
    assert losses[-1] < found.loss_after
    assert (found.source, found.step) == ("parent", 9)
    assert [point * 24 for point in found.shape.widths] == pytest.approx(model.widths)
    recipe = load_recipe(out / "shrunk.yaml")
    assert recipe.train.steps == 6
    assert recipe.explicit_model.cost().forward_flops(17) == pytest.approx(found.before.flops_per_token, rel=0.01)


def test_nothing_cut_is_the_same_loss_and_the_same_tokens(parent: Path) -> None:
    found = shrink_run(parent, None, ShrinkOptions(flops=1.0, calibration_batches=1))
    assert found.agreement == 1
    assert found.loss_after == pytest.approx(found.loss_before, abs=1e-5)
    assert {tuple(layer.energy_kept) for layer in found.layers} == {(1.0, 1.0)}


def test_the_cut_does_not_depend_on_the_sequences_of_a_pass(trained) -> None:
    run = trained(*UNIFORM, "train.batch_size=8", name="eight")
    whole, split = (shrink_run(run, None, CUT, [f"train.micro_batch_size={n}"]) for n in (8, 2))
    assert sizes_after(split) == sizes_after(whole)
    assert [layer.lost for layer in split.layers] == pytest.approx([layer.lost for layer in whole.layers], rel=1e-3)


def test_the_division_between_parts_does_not_depend_on_the_unit_of_their_scores(parent: Path, tmp_path: Path) -> None:
    """Values of all heads 64 times as large, and what reads them as much smaller: exactly the same function."""
    loaded = open_model(parent, "cpu")
    with torch.no_grad():
        for layer in loaded.model.layers:
            layer.attention.w_v.weight.mul_(64)
            layer.attention.w_o.weight.div_(64)
    scaled = save_run(loaded.model, loaded.tokenizer, tmp_path / "scaled", saved_recipe(RunDir(parent)))
    options = CUT.model_copy(update={"score": "magnitude", "flops": 0.5})
    assert sizes_after(shrink_run(scaled, None, options)) == sizes_after(shrink_run(parent, None, options))


def test_the_loss_is_that_of_the_new_run(parent: Path, tmp_path: Path) -> None:
    out = tmp_path / "small"
    found = shrink_run(parent, out, ShrinkOptions(params=0.8, shape="uniform", calibration_batches=1, multiple=4))
    (text,) = evaluate_run(out).texts.values()
    assert text.metrics["nats_per_token"].value == pytest.approx(found.loss_after, abs=1e-4)


def test_layers_that_own_part_of_the_stream_keep_their_order(finished: Path, tmp_path: Path) -> None:
    """The run of the tiny recipe is an x: its heads and units are cut, and its layers get no wider than they were."""
    lines: list[str] = []
    options = ShrinkOptions(flops=0.8, calibration_batches=1, multiple=4)
    found = shrink_run(finished, tmp_path / "small", options, say=lines.append)
    assert not found.turned
    assert found.shape is None
    assert lines[-1] == "the shape is not kept as a curve: its layers are not all as wide as the embedding"
    assert not (tmp_path / "small" / "shrunk.yaml").exists()
    assert "d_model" in (found.not_turned or "")
    assert all(after <= before for layer in found.layers for before, after in (layer.d_model, layer.n_hidden))


def test_weights_that_are_no_numbers_are_named(parent: Path, tmp_path: Path) -> None:
    loaded = open_model(parent, "cpu")
    for name, value in (("embedding", math.nan), ("layers.1.ffn.w_up", math.inf)):
        weight = loaded.model.get_submodule(name).weight
        with torch.no_grad():
            weight[1, 1], kept = value, weight[1, 1].clone()
            run = save_run(loaded.model, loaded.tokenizer, tmp_path / name, saved_recipe(RunDir(parent)))
            weight[1, 1] = kept
        for convert, options in ((shrink_run, {"options": CUT}), (grow_run, {"sizes": NewSizes(add_layers=1)})):
            assert f"{name}.weight holds NaN or infinity" in refusal(convert, run, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_run_that_cannot_be_written_whole_is_not_there(parent: Path, tmp_path: Path, monkeypatch) -> None:
    out, full = tmp_path / "out", "No space left on device (os error 28)"
    for place, error in (
        ("widthwise.training.checkpoint_folder.save_file", SafetensorError(full)),
        ("widthwise.runs.shrink.dump_yaml", OSError(full)),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(place, Mock(side_effect=error))
            assert refusal(shrink_run, parent, out, CUT) == f"{out}: cannot be written ({full})"
    assert not any(tmp_path.iterdir())


def test_mistakes_are_said_before_anything_is_written(parent: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("kept")
    budget, out = ShrinkOptions(flops=0.7), tmp_path / "out"
    assert "exists already" in refusal(shrink_run, parent, tmp_path / "taken", budget)
    assert "tokenizer" in refusal(shrink_run, parent, out, budget, ["data.tokenizer=bpe-300"])
    decided = "model.d_model: the cut decides the model"
    assert decided in refusal(shrink_run, parent, out, budget, ["model.d_model=16"])
    little = ShrinkOptions(kv_bytes=0.1, parts="stream", calibration_batches=1)
    assert "no less than" in refusal(shrink_run, parent, out, little)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["taken"]


def test_the_sizes_of_a_recipe_take_the_place_of_a_budget(parent: Path, tmp_path: Path) -> None:
    sizes = [LayerSizes(24, 3, 96), LayerSizes(8, 1, 40), LayerSizes(20, 2, 33)]
    model = saved_recipe(RunDir(parent)).explicit_model
    to = smaller_config(model, sizes)
    found = shrink_run(parent, tmp_path / "out", ShrinkOptions(calibration_batches=1), to=to)
    assert layer_sizes(saved_recipe(RunDir(tmp_path / "out")).explicit_model) == sizes
    assert [layer.d_model[1] for layer in found.layers] == [24, 8, 20]
    for options, given, message in (
        (ShrinkOptions(), None, "got no budget"),
        (ShrinkOptions(flops=0.5), to, "--flops: conflicts with --to"),
        (ShrinkOptions(parts="stream"), to, "--parts: conflicts with --to"),
    ):
        assert message in refusal(shrink_run, parent, None, options, to=given)


def test_fewer_layers_in_a_narrower_stream_are_a_run_too(parent: Path, tmp_path: Path) -> None:
    model = saved_recipe(RunDir(parent)).explicit_model
    first, _, last = (size._replace(d_model=16) for size in layer_sizes(model))
    to = smaller_config(model, [first, LEFT_OUT, last], 16)
    found = shrink_run(parent, tmp_path / "out", ShrinkOptions(calibration_batches=1), ["train.steps=4"], to=to)
    written = saved_recipe(RunDir(tmp_path / "out")).explicit_model
    assert (written.d_model, written.widths) == (16, [16, 16])
    assert list(found.d_model) == [24, 16]
    sizes = [(layer.d_model[1], layer.n_hidden[1], layer.n_experts[1]) for layer in found.layers]
    assert sorted(sizes) == [(0, 0, 0), (16, 96, 1), (16, 96, 1)]
    (left_out,) = (layer for layer in found.layers if layer.d_model[1] == 0)
    assert list(left_out.energy_kept) == [0, 0]
    assert resume(tmp_path / "out")["val_loss"] < found.loss_after


def test_a_mixture_is_cut_and_heals(trained, tmp_path: Path) -> None:
    mixture = trained(*UNIFORM, "model.ffn={kind: moe, n_experts: 4, top_k: 2, d_expert: 16}", name="mixture")
    options = ShrinkOptions(params=0.6, calibration_batches=1, multiple=4)
    found = shrink_run(mixture, tmp_path / "small", options, ["train.steps=4"])
    assert found.turned
    assert found.after.params <= 0.6 * found.before.params
    layers = saved_recipe(RunDir(tmp_path / "small")).explicit_model.layers
    kept = [layer for layer in found.layers if layer.d_model[1]]
    assert [[layer.ffn.n_experts, layer.ffn.d_expert] for layer in layers] == [
        [layer.n_experts[1], layer.n_hidden[1]] for layer in kept
    ]
    resume(tmp_path / "small")


def test_documents_are_kept_apart_as_in_training(trained) -> None:
    """The loss before the cut is that of the run, whose attention ends at the border of a document."""
    run = trained(*UNIFORM, "data.mask_documents=true", name="masked")
    found = shrink_run(run, None, ShrinkOptions(flops=0.9, calibration_batches=1, multiple=4))
    assert found.loss_before == pytest.approx(RunDir(run).result().val_loss, abs=1e-6)
