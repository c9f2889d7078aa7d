"""`shrink` of a Hugging Face folder in one command: as if it had been imported, and with its weights as they are."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from boxes import refusal
from safetensors.torch import load_file
from tiny_runs import tiny_recipe

from widthwise.growth.choices import ShrinkOptions
from widthwise.growth.shrink import LayerSizes, layer_sizes, smaller_config
from widthwise.model.generate import SamplingConfig, generate
from widthwise.recipe.recipe import saved_recipe
from widthwise.run_dir import RunDir
from widthwise.runs.export import export_run
from widthwise.runs.open import open_model
from widthwise.runs.save import import_run
from widthwise.runs.shrink import shrink_run
from widthwise.runs.train import resume
from widthwise.training.checkpoint_folder import checkpoint_paths

UNIFORM = ("model.shape={kind: uniform}", "model.d_model=24", "model.vocab_size=300", "data.tokenizer=bpe-300")
HEALING = (
    *("data.corpus=synthetic", "seq_len=17", "train.batch_size=4", "train.micro_batch_size=2", "train.steps=4"),
    *("train.validation_tokens=90", "schedule.warmup_steps=1"),
)
FP32 = (*HEALING, "train.precision=fp32")
BF16 = (*HEALING, "train.precision=bf16")
SIZES = [LayerSizes(24, 3, 64), LayerSizes(8, 1, 40), LayerSizes(20, 2, 33)]


@pytest.fixture(scope="module")
def folders(trained) -> dict[str, Path]:
    """A trained llama in fp32 and in bf16."""
    run = trained(*UNIFORM)
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


def test_it_heals_leaves_and_generates_what_transformers_does(folders: dict[str, Path], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra [hf]")
    pytest.importorskip("widthwise.hf")
    run, exported = tmp_path / "small", tmp_path / "exported"
    to = smaller_config(tiny_recipe(*UNIFORM).explicit_model, SIZES)
    found = shrink_run(folders["fp32"], run, ShrinkOptions(calibration_batches=1), FP32, to=to)
    assert layer_sizes(saved_recipe(RunDir(run)).explicit_model) == SIZES
    assert resume(run)["val_loss"] < found.loss_after
    assert export_run(run, exported)["model_type"] == "widthwise"
    ours = open_model(run, "cpu")
    prompt = ours.tokenizer.encode("A river is ")
    expected = generate(ours.model, [prompt], 12, SamplingConfig(temperature=0))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
    text = theirs.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0)
    assert text[:, len(prompt) :].tolist() == expected


def test_weights_in_bf16_stay_so_where_the_run_computes_in_bf16(folders: dict[str, Path], tmp_path: Path) -> None:
    """Sorting changes no weight, so that without a cut the run has those of the folder."""
    whole = ShrinkOptions(flops=1.0, calibration_batches=1, stream="sorted")
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
        (folder, ["model.d_model=16"], None, "model.d_model: the cut decides the model"),
        (folder, ["train.step=16"], None, "train.step"),
        (bare, [*FP32, "data.tokenizer=bpe-360"], None, "model.vocab_size: got 300; must be at least 360"),
        (mamba, FP32, None, "model_type: a mamba has state-space layers"),
    ):
        assert message in refusal(shrink_run, source, tmp_path / "out", ShrinkOptions(flops=0.7), changes, step=step)
    assert not (tmp_path / "out").exists()
