"""Runs that are resumed with other settings."""

import json
import shutil
import signal
from pathlib import Path

import pytest
from tiny_runs import Listener, outcome, tiny_recipe, unfinished_copy

from widthwise.config_io import UserError
from widthwise.recipe.recipe import saved_recipe
from widthwise.run_dir import RunDir
from widthwise.runs.train import resume, train
from widthwise.training.stopping import Interrupted
from widthwise.yaml_io import to_yaml

CONSTANT = "schedule={kind: constant, warmup_steps: 2}"


@pytest.fixture(scope="module")
def constant(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "constant"
    train(tiny_recipe(CONSTANT), path)
    return path


@pytest.fixture(scope="module")
def cosine(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "cosine"
    train(tiny_recipe(), path)
    return path


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
        "by the schedule of 14 steps the rate goes from 0.01 to 0.01"
    ]


def test_the_rate_is_that_of_the_longer_schedule_from_the_next_step_on(cosine, tmp_path):
    run = shutil.copytree(cosine, tmp_path / "run")
    result = resume(run, overrides=["train.steps=14", "train.log_every=1"])
    rates = {record["step"]: record["lr"] for record in RunDir(run).metrics() if record["event"] == "train"}
    longer = tiny_recipe("train.steps=14")
    assert rates[9] == 0.01 * tiny_recipe().lr_factor(9)
    assert {step: rates[step] for step in range(10, 15)} == {s: 0.01 * longer.lr_factor(s) for s in range(10, 15)}
    assert result.notes[0].endswith(f"goes from {rates[9]:.3g} to {rates[10]:.3g}")


def test_intervals_of_records_and_checkpoints_change_nothing_else(cosine, tmp_path):
    run = unfinished_copy(cosine, tmp_path / "run", 4)
    asked = ["train.log_every=1", "train.validate_every=3", "train.checkpoint_every=3", "train.keep_last=2"]
    result = resume(run, overrides=asked)
    assert weights(run) == weights(cosine)
    assert result.val_loss == RunDir(cosine).result().val_loss
    records = RunDir(run).metrics()
    assert [record["step"] for record in records if record["event"] == "train"] == [4, 5, 6, 7, 8, 9]
    assert [record["step"] for record in records if record["event"] == "validation"] == [6, 9]
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step_00000006", "step_00000009"]
    (continuation,) = RunDir(run).continuations()
    assert (continuation.after_step, continuation.after["train.keep_last"]) == (4, 2)


def test_a_stop_in_the_added_steps_is_resumed_bitwise(cosine, tmp_path):
    whole, run = (shutil.copytree(cosine, tmp_path / name) for name in ("whole", "run"))
    resume(whole, overrides=["train.steps=14"])
    with pytest.raises(Interrupted):
        resume(run, Listener(lambda step: step == 11 and signal.raise_signal(signal.SIGTERM)), ["train.steps=14"])
    resume(run)
    assert outcome(run) == outcome(whole)
    assert RunDir(run).result().notes == RunDir(whole).result().notes


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.vocab_size=300", r"model\.vocab_size: cannot change in a run that was begun; allowed: train\.steps, "),
        ("train.seed=4", r"train\.seed: cannot change .*`widthwise grow .*run KEY=VALUE --out NEW`"),
        ("seq_len=18", r"seq_len: cannot change"),
        ("data.corpus=python-stdlib", r"data\.corpus: cannot change"),
        ("optimizer.lr=0.2", r"optimizer\.lr: cannot change"),
        ("train.step=20", r"train\.step: "),
        ("train.steps=8", r"train\.steps: is 8; .*run has finished 9 steps, so that it must be more than that"),
        ("train.log_every=1", r"train\.steps: is 9; .* has finished 9 steps"),
    ],
)
def test_what_would_be_another_run_is_refused_and_leaves_nothing(cosine, tmp_path, override, message):
    run = shutil.copytree(cosine, tmp_path / "run")
    files = {name: (run / name).read_bytes() for name in ("config.yaml", "environment.json", "result.json")}
    with pytest.raises(UserError, match=message):
        resume(run, overrides=[override])
    assert {name: (run / name).read_bytes() for name in files} == files


def test_fewer_steps_than_made_are_refused(cosine, tmp_path):
    run = unfinished_copy(cosine, tmp_path / "run", 7)
    with pytest.raises(UserError, match=r"train\.steps: is 6; .* has made 7 steps, so that it must be at least that"):
        resume(run, overrides=["train.steps=6"])
    assert resume(run, overrides=["train.steps=8"]).steps == 8


def test_a_recipe_changed_by_hand_afterwards_is_named(cosine, tmp_path):
    run = shutil.copytree(cosine, tmp_path / "run")
    resume(run, overrides=["train.steps=14"])
    path = run / "config.yaml"
    path.write_text(path.read_text().replace("steps: 14", "steps: 15"))
    with pytest.raises(UserError, match=r"was changed after the run was begun: train\.steps from 14 to 15"):
        RunDir(run).result()


def test_a_kill_between_the_files_leaves_a_run_that_can_be_read_and_continued(cosine, tmp_path):
    run = shutil.copytree(cosine, tmp_path / "run")
    config, result = (run / "config.yaml").read_text(), (run / "result.json").read_bytes()
    resume(run, overrides=["train.steps=14"])
    (run / "config.yaml").write_text(config)
    (run / "result.json").write_bytes(result)
    assert RunDir(run).config_yaml() == config
    again = shutil.copytree(cosine, tmp_path / "again")
    environment = json.loads((run / "environment.json").read_text())
    (again / "environment.json").write_text(json.dumps(environment))
    resume(again, overrides=["train.steps=14"])
    assert saved_recipe(RunDir(again)).train.steps == 14
    assert to_yaml(saved_recipe(RunDir(again))).count("steps: 14") == 1
