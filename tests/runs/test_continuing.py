"""Runs that are resumed with other settings."""

import json
import shutil
from pathlib import Path

import pytest
from boxes import refusal
from tiny_runs import outcome, tiny_recipe, unfinished_copy

from widthwise.recipe.recipe import saved_recipe
from widthwise.run_dir import RunDir
from widthwise.runs.train import resume, train
from widthwise.yaml_io import to_yaml

CONSTANT = "schedule={kind: constant, warmup_steps: 2}"


@pytest.fixture(scope="module")
def constant(trained) -> Path:
    return trained(CONSTANT)


def weights(run: Path) -> list[dict[str, str]]:
    return [outcome(run)[part] for part in ("model", "optimizer")]


def test_a_finished_run_with_more_steps_is_bitwise_one_that_was_begun_with_them(constant, tmp_path):
    run = shutil.copytree(constant, tmp_path / "run")
    before = (run / "result.json").read_bytes()
    result = resume(run, overrides=["train.steps=14"])
    longer = train(tiny_recipe(CONSTANT, "train.steps=14"), tmp_path / "longer")
    assert weights(run) == weights(tmp_path / "longer")
    for key in ("steps", "tokens", "val_loss", "val_window_losses", "train_loss", "training_flops"):
        assert result[key] == longer[key]
    assert (run / "result_step_00000009.json").read_bytes() == before
    assert saved_recipe(RunDir(run)).train.steps == 14
    assert result.notes == [
        "resumed after step 9 with train.steps from 9 to 14; "
        "the schedule of 14 steps changes the rate from 0.01 to 0.01"
    ]


def test_intervals_of_records_and_checkpoints_change_nothing_else(finished, tmp_path):
    run = unfinished_copy(finished, tmp_path / "run", 4)
    asked = ["train.log_every=1", "train.validate_every=3", "train.checkpoint_every=3", "train.keep_last=2"]
    result = resume(run, overrides=asked)
    assert weights(run) == weights(finished)
    assert result.val_loss == RunDir(finished).result().val_loss
    records = RunDir(run).metrics()
    assert [record["step"] for record in records if record["event"] == "train"] == [4, 5, 6, 7, 8, 9]
    assert [record["step"] for record in records if record["event"] == "validation"] == [6, 9]
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step_00000006", "step_00000009"]
    (continuation,) = RunDir(run).continuations()
    assert (continuation.after_step, continuation.after["train.keep_last"]) == (4, 2)


def test_what_would_be_another_run_is_refused_and_leaves_nothing(finished, tmp_path):
    run = shutil.copytree(finished, tmp_path / "run")
    files = {name: (run / name).read_bytes() for name in ("config.yaml", "environment.json", "result.json")}
    for override, message in (
        ("model.vocab_size=300", "model.vocab_size: cannot change in an existing run; allowed: train.steps, "),
        ("train.seed=4", f"`widthwise grow {run} KEY=VALUE --out NEW`"),
        ("seq_len=18", "seq_len: cannot change"),
        ("data.corpus=python-stdlib", "data.corpus: cannot change"),
        ("optimizer.lr=0.2", "optimizer.lr: cannot change"),
        ("train.step=20", "train.step: "),
        ("train.steps=8", f"train.steps: got 8; must be more than 9, the steps that {run} has finished with"),
        ("train.log_every=1", "train.steps: got 9; must be more than 9"),
    ):
        assert message in refusal(resume, run, overrides=[override])
        assert {name: (run / name).read_bytes() for name in files} == files
    run = unfinished_copy(finished, tmp_path / "begun", 7)
    message = f"train.steps: got 6; must be at least 7, the steps that {run} has made"
    assert message in refusal(resume, run, overrides=["train.steps=6"])
    assert resume(run, overrides=["train.steps=8"]).steps == 8


def test_the_step_of_a_continuation_is_that_of_the_checkpoint_it_loads(finished, tmp_path):
    run = unfinished_copy(finished, tmp_path / "run", 7)
    (run / "checkpoints" / "step_00000007" / "model.safetensors").write_bytes(b"damaged")
    notes = resume(run, overrides=["train.keep_last=2"]).notes
    assert [note for note in notes if "resumed from step 6 instead" in note]
    assert [note for note in notes if note.startswith("resumed after step 6 with ")]
    assert RunDir(run).continuations()[0].after_step == 6


def test_a_kill_between_the_files_leaves_a_run_that_can_be_read_and_continued(finished, tmp_path):
    run = shutil.copytree(finished, tmp_path / "run")
    config, result = (run / "config.yaml").read_text(), (run / "result.json").read_bytes()
    resume(run, overrides=["train.steps=14"])
    (run / "config.yaml").write_text(config)
    (run / "result.json").write_bytes(result)
    assert RunDir(run).config_yaml() == config
    again = shutil.copytree(finished, tmp_path / "again")
    environment = json.loads((run / "environment.json").read_text())
    (again / "environment.json").write_text(json.dumps(environment))
    resume(again, overrides=["train.steps=14"])
    assert saved_recipe(RunDir(again)).train.steps == 14
    assert to_yaml(saved_recipe(RunDir(again))).count("steps: 14") == 1
