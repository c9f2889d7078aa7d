"""A run that was stopped, killed or damaged ends bitwise as one that nobody disturbed, or says what is in its way; runs
resumed with other settings. Kills at random moments are in tests/faults."""

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from boxes import refusal
from file_operations import flip_a_bit, forge, keep_states
from growing_runs import SLOTS, UNIFORM
from ranks import launched
from thinned import hard_but
from tiny_runs import Listener, outcome, resumed_alike, tiny_recipe, unfinished_copy

from widthwise.recipe.recipe import Recipe, saved_recipe
from widthwise.run_dir import RunDir
from widthwise.runs import train as train_module
from widthwise.runs.result import run_result
from widthwise.runs.train import resume, train, train_or_resume
from widthwise.training import checkpoint_folder
from widthwise.training.launch import Interrupted
from widthwise.yaml_io import to_yaml


@pytest.mark.parametrize("step", [0, 1, 5, 9])
def test_resuming_from_any_step_is_bitwise_the_uninterrupted_run(finished, tmp_path, step):
    run = unfinished_copy(finished, tmp_path / "run", step)
    listener = Listener()
    resume(run, listener)
    assert outcome(run) == outcome(finished)
    assert listener.messages == [f"{run}: resuming after step {step} of 9"]
    assert RunDir(run).result()["notes"] == []


def test_so_it_is_with_further_heads_and_slots(tmp_path):
    """Runs that carry more from step to step are in tests/training/test_growth_in_training.py."""
    train(tiny_recipe("model.mtp={n_depths: 2}", SLOTS), tmp_path / "whole")
    resumed_alike(tmp_path / "whole", tmp_path, 6)


def test_checkpoints_of_another_run_are_refused_before_any_is_deleted(finished, tmp_path):
    """Of a copy, whose seals are the same, too."""
    other, aside, new = shutil.copytree(finished, tmp_path / "other"), tmp_path / "aside", tmp_path / "new"
    run = unfinished_copy(finished, tmp_path / "run", 4)
    (run / "checkpoints").rename(aside)
    new.mkdir()
    before = sorted(other.rglob("*"))
    leads = f"checkpoints: leads to the checkpoints of another run, {other}"
    replaced = "step_00000004: a new run would replace it; choose another folder with --out"
    for link, target, verb, message in (
        (run / "checkpoints", other / "checkpoints", (resume, run), leads),
        (new / "checkpoints", other / "checkpoints", (train, tiny_recipe(), new), leads),
        (new / "checkpoints", aside, (train, tiny_recipe(), new), replaced),
    ):
        link.symlink_to(target)
        assert message in refusal(*verb)
        assert sorted(other.rglob("*")) == before
        link.unlink()
    (run / "checkpoints").symlink_to(aside)  # a larger disk
    metrics = run / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-20])  # a torn last record is written again
    resume(run)
    assert outcome(run) == outcome(finished)


def test_checkpoints_that_another_run_sealed_stay(finished, tmp_path):
    run, other = unfinished_copy(finished, tmp_path / "run", 8), tmp_path / "other"
    train(tiny_recipe("train.seed=4", "train.keep_last=1"), other)
    shutil.rmtree(run / "checkpoints" / "step_00000003")
    stranger = shutil.copytree(other / "checkpoints" / "step_00000009", run / "checkpoints" / "step_00000003")
    forge(stranger / "manifest.json", lambda manifest: manifest.update(step=3))
    resume(run, overrides=["train.keep_last=1"])
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step_00000003", "step_00000009"]


@pytest.mark.parametrize(
    ("name", "before", "after", "message"),
    [
        ("config.yaml", "lr: 0.01", "lr: 0.21", r": .* optimizer\.lr from 0\.01 to 0\.21; .*grow .*run KEY=VALUE"),
        ("metrics.jsonl", '{"step": 4', '{"step": 3', r": its first \d+ bytes were changed .*step_00000006"),
        ("metrics.jsonl", "(?s).*", "", r": has 0 bytes, and had \d+ when step_00000006 was written"),
    ],
)
def test_what_was_changed_since_the_checkpoint_is_named(finished, tmp_path, name, before, after, message):
    file = unfinished_copy(finished, tmp_path / "run", 6) / name
    content, n_changed = re.subn(before, after, file.read_text(), count=1)
    assert n_changed == 1
    file.write_text(content)
    assert re.search(name + message, refusal(resume, file.parent))


def test_damaged_checkpoints_are_passed_over_named_and_replaced(finished, tmp_path):
    run = unfinished_copy(finished, tmp_path / "run", 8)
    flip_a_bit(run / "checkpoints" / "step_00000008" / "optimizer.safetensors")
    (run / "checkpoints" / "step_00000007" / "manifest.json").unlink()
    manifest = run / "checkpoints" / "step_00000006" / "manifest.json"
    sha256 = json.loads(manifest.read_text())["seal"]["metrics"]["sha256"]
    manifest.write_text(manifest.read_text().replace(sha256, sha256[::-1]))
    listener = Listener()
    resume(run, listener)
    assert outcome(run) == outcome(finished)
    notes = RunDir(run).result()["notes"]
    for note, step, reason in zip(
        notes, (8, 7, 6), ("optimizer.safetensors", "manifest.json", "manifest.json: seal: was changed"), strict=True
    ):
        assert f"step_0000000{step} is damaged ({reason}" in note
        assert "resumed from step 5" in note
    assert listener.messages[:3] == notes
    assert checkpoint_folder.find_damage(run / "checkpoints" / "step_00000008") is None
    bare = unfinished_copy(finished, tmp_path / "bare", 2)
    for path in (bare / "checkpoints").iterdir():
        flip_a_bit(path / "model.safetensors")
    resume(bare, listener)
    assert outcome(bare) == outcome(finished)
    assert listener.messages[-1] == f"{bare}: resuming after step 0 of 9"


def test_a_damaged_checkpoint_is_never_kept_in_the_place_of_a_good_one(tmp_path):
    recipe, path = tiny_recipe("train.checkpoint_every=3", "train.keep_last=2"), tmp_path / "run"
    with pytest.raises(Interrupted):
        train(recipe, path, Listener(lambda step: step == 8 and signal.raise_signal(signal.SIGTERM)))
    flip_a_bit(path / "checkpoints" / "step_00000008" / "model.safetensors")
    resume(path)
    names = sorted(folder.name for folder in (path / "checkpoints").iterdir())
    assert names == ["step_00000006", "step_00000009"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_its_step_with_a_checkpoint(finished, tmp_path, number):
    recipe = tiny_recipe("train.checkpoint_every=null")
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Interrupted, match=r"stopped at step 5 of 9.*`widthwise resume .*run` continues it") as caught:
        train(recipe, tmp_path / "run", Listener(lambda step: step == 5 and signal.raise_signal(number)))
    assert caught.value.exit_code == 128 + number
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step_00000005"]
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers
    resume(tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(finished)


def test_a_signal_behind_the_last_step_lets_the_run_finish_and_stops_what_would_follow(finished, tmp_path, monkeypatch):
    def pressed(*found: Any) -> dict[str, Any]:
        signal.raise_signal(signal.SIGTERM)
        return run_result(*found)

    monkeypatch.setattr(train_module, "run_result", pressed)
    with pytest.raises(Interrupted, match=r"run: has finished; stopped after it") as caught:
        train(tiny_recipe(), tmp_path / "run")
    assert caught.value.exit_code == 128 + signal.SIGTERM
    assert outcome(tmp_path / "run") == outcome(finished)


def test_a_second_ctrl_c_stops_at_once(tmp_path):
    def press_twice(step: int) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            train(tiny_recipe("train.checkpoint_every=null"), tmp_path / "run", Listener(press_twice))
    finally:
        signal.signal(signal.SIGINT, before)
    with RunDir(tmp_path / "run").locked():
        pass


def test_a_run_whose_folder_is_deleted_stops_and_does_not_bring_it_back(tmp_path):
    path = tmp_path / "run"
    listener = Listener(lambda step: shutil.rmtree(path) if step == 5 else None)
    message = "metrics.jsonl: cannot be written (No such file or directory)"
    assert message in refusal(train, tiny_recipe(), path, listener)
    assert not path.exists()


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
    (note,) = result.notes
    assert note.startswith("resumed after step 9 with train.steps from 9 to 14; the schedule of 14 steps changes")


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
    resume(run, overrides=["train.steps=14"])
    again = shutil.copytree(finished, tmp_path / "again")
    shutil.copy(run / "environment.json", again)
    assert RunDir(again).config_yaml() == (finished / "config.yaml").read_text()
    resume(again, overrides=["train.steps=14"])
    assert saved_recipe(RunDir(again)).train.steps == 14
    assert to_yaml(saved_recipe(RunDir(again))).count("steps: 14") == 1


STEPS = ("train.steps=4", "train.checkpoint_every=2", "train.keep_last=1", "train.validate_every=2")
KILLED = {
    "plain": ((), [4], 31),
    "growth": ((UNIFORM, "growth=[{at_step: 2, model: {n_layers: 4}}]"), [4], 11),
    "keep": (("train.checkpoint_every=1", "train.validate_every=1", "train.keep_every=2"), [2, 4], 21),
}
"""Kind -> overrides, the checkpoints that stay, and the least number of states that its file operations leave."""


def train_watched(recipe: Recipe, path: Path, states: Path) -> None:
    keep_states(path, states)
    train(recipe, path)


@pytest.mark.parametrize("kind", hard_but(["plain"], KILLED))
def test_killed_before_every_file_operation(kind, tmp_path):
    overrides, kept, n_states = KILLED[kind]
    recipe, path, states = tiny_recipe(*STEPS, *overrides), tmp_path / "run", tmp_path / "states"
    launched(1, train_watched, recipe, path, states, errors=tmp_path / "errors", codes=[0])
    whole, killed = outcome(path), sorted(states.iterdir())
    for state in killed:
        shutil.rmtree(path)
        shutil.copytree(state, path)
        train_or_resume(recipe, path)
        assert outcome(path) == whole, f"killed in {state}"
        left = sorted(item.name for item in (path / "checkpoints").iterdir())
        assert left == [f"step_{step:08d}" for step in kept], f"killed in {state}"
    assert len(killed) >= n_states
