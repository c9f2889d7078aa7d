"""`shrink`: a run out of a run, or of a Hugging Face folder as if it had been imported, which heals like any other."""

import json
import math
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from boxes import refusal
from safetensors import SafetensorError
from safetensors.torch import load_file

from widthwise.growth.choices import NewSizes, ShrinkOptions
from widthwise.growth.shrink import REMOVED, LayerSizes, layer_sizes, smaller_config
from widthwise.recipe.recipe import load_recipe, saved_recipe
from widthwise.records.resizing import Shrinking
from widthwise.run_dir import RunDir
from widthwise.runs.evaluate import evaluate_run
from widthwise.runs.export import export_run
from widthwise.runs.grow import grow_run
from widthwise.runs.open import open_model
from widthwise.runs.save import import_run, save_run
from widthwise.runs.shrink import shrink_run
from widthwise.runs.train import resume
from widthwise.training.checkpoint_folder import checkpoint_paths

CUT = ShrinkOptions(flops=0.7, calibration_batches=2, multiple=4)
UNIFORM = ("model.shape={kind: uniform}", "model.d_model=24", "train.checkpoint_every=9")


@pytest.fixture(scope="module")
def parent(trained) -> Path:
    return trained(*UNIFORM, name="parent")


def sizes_after(cut: Shrinking) -> list[LayerSizes]:
    return [LayerSizes(*(getattr(layer, name)[1] for name in LayerSizes._fields)) for layer in cut.layers]


def test_a_smaller_run_is_written_and_heals(parent: Path, tmp_path: Path) -> None:
    out = tmp_path / "small"
    found = shrink_run(parent, out, CUT, ["train.steps=6", "train.validate_every=3"])
    assert found == Shrinking.read(out)
    model = saved_recipe(RunDir(out)).explicit_model
    assert (found.source, found.step, found.turned, found.not_turned) == ("parent", 9, True, None)
    assert found.after.flops_per_token <= 0.7 * found.before.flops_per_token
    assert found.after.params == model.cost().params
    assert sizes_after(found) == layer_sizes(model)
    assert 0 <= found.agreement <= 1
    (text,) = evaluate_run(out).texts.values()
    assert text.metrics["nats_per_token"].value == pytest.approx(found.loss_after, abs=1e-4)
    assert resume(out).val_loss < found.loss_after
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
    for place, error, path in (
        ("widthwise.training.checkpoint_folder.save_file", SafetensorError(full), "checkpoints/step_00000000"),
        ("widthwise.runs.shrink.dump_yaml", OSError(full), out),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(place, Mock(side_effect=error))
            assert refusal(shrink_run, parent, out, CUT).endswith(f"{path}: cannot be written ({full})")
    assert not any(tmp_path.iterdir())
    (out / "other").mkdir(parents=True)
    assert "out: exists already" in refusal(shrink_run, parent, out, CUT)


def test_the_sizes_of_a_recipe_take_the_place_of_a_budget(parent: Path, tmp_path: Path) -> None:
    sizes = [LayerSizes(24, 3, 96), LayerSizes(8, 1, 40), LayerSizes(20, 2, 33)]
    model = saved_recipe(RunDir(parent)).explicit_model
    to = smaller_config(model, sizes)
    found = shrink_run(parent, tmp_path / "out", ShrinkOptions(calibration_batches=1), to=to)
    assert layer_sizes(saved_recipe(RunDir(tmp_path / "out")).explicit_model) == sizes
    assert sizes_after(found) == sizes
    for options, given, message in (
        (ShrinkOptions(), None, "got no budget"),
        (ShrinkOptions(kv_bytes=0.01, calibration_batches=1), None, "no less than"),
        (ShrinkOptions(flops=0.5), to, "--flops: conflicts with --to"),
        (ShrinkOptions(multiple=4), to, "--multiple: conflicts with --to"),
    ):
        assert message in refusal(shrink_run, parent, None, options, to=given)


def test_fewer_layers_in_a_narrower_stream_are_a_run_too(parent: Path, tmp_path: Path) -> None:
    model = saved_recipe(RunDir(parent)).explicit_model
    first, _, last = (size._replace(d_model=16) for size in layer_sizes(model))
    to = smaller_config(model, [first, REMOVED, last], 16)
    found = shrink_run(parent, tmp_path / "out", ShrinkOptions(calibration_batches=1), ["train.steps=4"], to=to)
    written = saved_recipe(RunDir(tmp_path / "out")).explicit_model
    assert (written.d_model, written.widths) == (16, [16, 16])
    assert list(found.d_model) == [24, 16]
    (left_out,) = (layer for layer in found.layers if layer.d_model[1] == 0)
    assert list(left_out.energy_kept) == [0, 0]
    assert sorted(sizes_after(found)) == sorted([first, REMOVED, last])
    assert resume(tmp_path / "out")["val_loss"] < found.loss_after


def test_a_mixture_is_cut_and_heals(trained, tmp_path: Path) -> None:
    mixture = trained(*UNIFORM, "model.ffn={kind: moe, n_experts: 4, top_k: 2, d_expert: 16}", name="mixture")
    options = ShrinkOptions(params=0.6, calibration_batches=1, multiple=4)
    found = shrink_run(mixture, tmp_path / "small", options, ["train.steps=4"])
    assert found.turned
    assert found.after.params <= 0.6 * found.before.params
    kept = [sizes for sizes in sizes_after(found) if sizes.d_model]
    assert layer_sizes(saved_recipe(RunDir(tmp_path / "small")).explicit_model) == kept
    resume(tmp_path / "small")


def test_documents_are_kept_apart_as_in_training(trained) -> None:
    """The loss before the cut is that of the run, whose attention ends at the border of a document."""
    run = trained(*UNIFORM, "data.mask_documents=true", name="masked")
    found = shrink_run(run, None, ShrinkOptions(flops=0.9, calibration_batches=1, multiple=4))
    assert found.loss_before == pytest.approx(RunDir(run).result().val_loss, abs=1e-6)


BPE = (*UNIFORM, "model.vocab_size=300", "data.tokenizer=bpe-300")
HEALING = (
    *("data.corpus=synthetic", "seq_len=17", "train.batch_size=4", "train.micro_batch_size=2", "train.steps=4"),
    *("train.validation_tokens=90", "schedule.warmup_steps=1"),
)
FP32 = (*HEALING, "train.precision=fp32")
BF16 = (*HEALING, "train.precision=bf16")


@pytest.fixture(scope="module")
def folders(trained) -> dict[str, Path]:
    """A trained llama in fp32 and in bf16."""
    run = trained(*BPE)
    folders = {dtype: run.with_name(dtype) for dtype in ("fp32", "bf16")}
    for dtype, folder in folders.items():
        assert export_run(run, folder, dtype=dtype)["model_type"] == "llama"
    return folders


def stored_types(folder: Path) -> set[torch.dtype]:
    return {weight.dtype for weight in load_file(folder / "model.safetensors").values()}


def test_one_command_does_what_import_and_shrink_do(folders: dict[str, Path], tmp_path: Path) -> None:
    options = ShrinkOptions(flops=0.7, calibration_batches=2, multiple=4)
    found = shrink_run(folders["fp32"], tmp_path / "small", options, FP32)
    import_run(folders["fp32"], tmp_path / "imported", overrides=FP32)
    expected = shrink_run(tmp_path / "imported", tmp_path / "other", options)
    assert (found.source, found.step) == ("fp32", 0)
    assert [each.to_data() for each in found.layers] == [each.to_data() for each in expected.layers]
    assert (found.loss_before, found.loss_after) == (expected.loss_before, expected.loss_after)
    ours, theirs = (open_model(tmp_path / name, "cpu") for name in ("small", "other"))
    for name, weight in ours.model.named_parameters():
        assert torch.equal(weight, theirs.model.get_parameter(name)), name
    sections = [saved_recipe(RunDir(tmp_path / name)).model_copy(update={"data": None}) for name in ("small", "other")]
    assert sections[0] == sections[1]
    origins = [RunDir(tmp_path / name).environment()["imported"] for name in ("small", "other")]
    assert origins[0] == origins[1]


def test_weights_in_bf16_stay_so_where_the_run_computes_in_bf16(folders, tmp_path: Path, monkeypatch) -> None:
    """Sorting changes no weight, so that without a cut the run has those of the folder."""
    monkeypatch.setattr("widthwise.runs.shrink.why_not_turned", lambda model: "to compare the weights")
    whole = ShrinkOptions(flops=1.0, calibration_batches=1)
    found = shrink_run(folders["bf16"], tmp_path / "whole", whole, BF16)
    assert stored_types(checkpoint_paths(tmp_path / "whole/checkpoints")[0]) == {torch.bfloat16}
    assert found.loss_after == pytest.approx(found.loss_before, abs=2e-3)
    import_run(folders["bf16"], tmp_path / "imported", overrides=BF16)
    ours, theirs = (open_model(tmp_path / name, "cpu").model for name in ("whole", "imported"))
    for name, weight in ours.named_parameters():
        assert torch.equal(weight.flatten().sort().values, theirs.get_parameter(name).flatten().sort().values), name
    shrink_run(folders["bf16"], tmp_path / "wide", whole, FP32)
    assert stored_types(checkpoint_paths(tmp_path / "wide/checkpoints")[0]) == {torch.float32}


def test_a_run_that_begins_in_bf16_trains_and_leaves_in_fp32(folders: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "small"
    found = shrink_run(folders["bf16"], run, ShrinkOptions(flops=0.8, calibration_batches=1, multiple=4), BF16)
    export_run(run, tmp_path / "first")
    assert stored_types(tmp_path / "first") == {torch.float32}
    assert resume(run)["val_loss"] < found.loss_after
    assert {weight.dtype for weight in open_model(run, "cpu").model.parameters()} == {torch.float32}


def test_mistakes_are_one_line(folders: dict[str, Path], tmp_path: Path) -> None:
    folder, bare = folders["fp32"], tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).symlink_to(folder / name)
    config = json.loads((folder / "config.json").read_text())
    mamba = shutil.copytree(bare, tmp_path / "mamba", symlinks=False)
    (mamba / "config.json").write_text(json.dumps(config | {"model_type": "mamba"}))
    for source, changes, step, message in (
        (folder, FP32, 3, "step: got 3; a Hugging Face folder holds one model"),
        ("hf://org/name", FP32, 3, "step: got 3; a model of the hub has no steps"),
        (folder, [*FP32, "data.tokenizer=bytes"], None, "data.tokenizer: got bytes; must be the model's"),
        (folder, ["model.d_model=16"], None, "model.d_model=16: the cut decides the model; give its sizes in a recipe"),
        (folder, ["train.step=16"], None, "train.step"),
        (bare, [*FP32, "data.tokenizer=bpe-360"], None, "model.vocab_size: got 300; must be at least 360"),
        (mamba, FP32, None, "model_type: a mamba has state-space layers"),
    ):
        assert message in refusal(shrink_run, source, tmp_path / "out", ShrinkOptions(flops=0.7), changes, step=step)
    assert not (tmp_path / "out").exists()
