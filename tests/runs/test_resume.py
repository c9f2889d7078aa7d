import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import Listener, outcome, tiny_recipe, unfinished_copy

from widthwise.config_io import UserError
from widthwise.run_dir import RunDir, RunFailed
from widthwise.runs import result as result_module
from widthwise.runs import train as train_module
from widthwise.runs.result import run_result
from widthwise.runs.train import resume, train
from widthwise.training import checkpoint_folder, saved_tensors
from widthwise.training.loop import TrainingLoop
from widthwise.training.stopping import Interrupted


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    train(tiny_recipe(), path)
    return path


@pytest.mark.parametrize("step", [0, 1, 4, 5, 8, 9])
def test_resuming_from_any_step_is_bitwise_the_uninterrupted_run(finished, tmp_path, step):
    run = unfinished_copy(finished, tmp_path / "run", step)
    listener = Listener()
    resume(run, listener)
    assert outcome(run) == outcome(finished)
    assert listener.messages == [f"{run}: going on after step {step} of 9"]
    assert RunDir(run).result()["notes"] == []


def test_checkpoints_of_another_run_are_refused_before_any_is_deleted(finished, tmp_path):
    """Of a copy, whose seals are the same, too."""
    other, run = tmp_path / "other", unfinished_copy(finished, tmp_path / "run", 4)
    shutil.copytree(finished, other)
    before = sorted(other.rglob("*"))
    (run / "checkpoints").rename(tmp_path / "aside")
    (run / "checkpoints").symlink_to(other / "checkpoints")
    with pytest.raises(UserError, match=f"{run}/checkpoints: leads to the checkpoints of another run, {other}"):
        resume(run)
    assert sorted(other.rglob("*")) == before
    (run / "checkpoints").unlink()
    (run / "checkpoints").symlink_to(tmp_path / "aside")  # a larger disk
    resume(run)
    assert outcome(run) == outcome(finished)


def test_checkpoints_that_another_run_sealed_stay(finished, tmp_path):
    run, other = unfinished_copy(finished, tmp_path / "run", 8), tmp_path / "other"
    train(tiny_recipe("train.seed=4", "train.keep_last=1"), other)
    shutil.rmtree(run / "checkpoints" / "step_00000003")
    stranger = shutil.copytree(other / "checkpoints" / "step_00000009", run / "checkpoints" / "step_00000003")
    manifest = json.loads((stranger / "manifest.json").read_text())
    (stranger / "manifest.json").write_text(json.dumps({**manifest, "step": 3}))
    resume(run, overrides=["train.keep_last=1"])
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step_00000003", "step_00000009"]


MUON = "optimizer={kind: muon, lr: 0.02, adamw: {lr: 0.01}}"
SLOTS = "model.residual={kind: hyper_connections, slot_width: 8, n_slots: 4}"


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("train.precision=bf16", "model.tie_embeddings=true", "train.z_loss=0.001"),
        (MUON,),
        (MUON, SLOTS, "model.mtp={}", "train.precision=bf16"),
    ],
)
def test_resuming_again_and_again_is_bitwise_the_uninterrupted_run(tmp_path, overrides):
    recipe = tiny_recipe("train.checkpoint_every=null", *overrides)
    train(recipe, tmp_path / "whole")
    go, path = (lambda it: train(recipe, path, it)), tmp_path / "run"
    for stop in (1, 4, 5, 8):
        with pytest.raises(Interrupted):
            go(Listener(lambda step, stop=stop: step == stop and signal.raise_signal(signal.SIGTERM)))
        go = lambda it: resume(path, it)  # noqa: E731
    resume(path)
    assert outcome(path) == outcome(tmp_path / "whole")


def test_a_torn_last_record_is_written_again(finished, tmp_path):
    run = unfinished_copy(finished, tmp_path / "run", 6)
    metrics = run / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-20])
    resume(run)
    assert outcome(run) == outcome(finished)


@pytest.mark.parametrize(
    ("name", "before", "after", "message"),
    [
        (
            "config.yaml",
            "lr: 0.01",
            "lr: 0.21",
            r"config\.yaml: .* optimizer\.lr from 0\.01 to 0\.21; .*grow .*run KEY=VALUE --out NEW`",
        ),
        (
            "metrics.jsonl",
            '{"step": 4',
            '{"step": 3',
            r"metrics\.jsonl: its first \d+ bytes were changed .*step_00000006",
        ),
        ("metrics.jsonl", None, "", r"metrics\.jsonl: has 0 bytes, and had \d+ when step_00000006 was written"),
    ],
)
def test_what_was_changed_since_the_checkpoint_is_named(finished, tmp_path, name, before, after, message):
    run = unfinished_copy(finished, tmp_path / "run", 6)
    content = (run / name).read_text()
    assert before is None or before in content
    (run / name).write_text(content.replace(content if before is None else before, after, 1))
    with pytest.raises(UserError, match=message):
        resume(run)


def test_a_run_that_is_moved_while_it_is_trained_goes_on_there(finished, tmp_path):
    path, moved = tmp_path / "run", tmp_path / "moved"
    result = train(tiny_recipe(), path, Listener(lambda step: step == 5 and path.rename(moved)))
    assert not path.exists()
    assert outcome(moved) == outcome(finished)
    assert result["notes"] == [f"{path}: was moved to {moved} while the run was at work; it goes on there"]


def test_a_run_that_is_moved_after_its_last_record_finishes_there(finished, tmp_path, monkeypatch):
    """Before its records are read, and while the model is looked into."""
    path, first, second = (tmp_path / name for name in ("run", "first", "second"))
    go, analyses = TrainingLoop.go, result_module.model_analyses

    def moved_afterwards(loop, watch):
        validation = go(loop, watch)
        path.rename(first)
        return validation

    def moved_meanwhile(*args):
        first.rename(second)
        return analyses(*args)

    monkeypatch.setattr(TrainingLoop, "go", moved_afterwards)
    monkeypatch.setattr(result_module, "model_analyses", moved_meanwhile)
    monkeypatch.setattr(train_module, "is_analysed", lambda model: True)  # this one has nothing to look for
    train(tiny_recipe(), path)
    assert outcome(second) == outcome(finished)
    assert not path.exists()
    assert not first.exists()


def test_a_run_that_is_deleted_while_it_is_trained_fails_and_leaves_nothing(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(RunFailed, match="run: was deleted"):
        train(tiny_recipe(), path, Listener(lambda step: step == 5 and shutil.rmtree(path)))
    assert not path.exists()


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 16
    file.write_bytes(content)


def test_damaged_checkpoints_are_passed_over_named_and_replaced(finished, tmp_path):
    run = unfinished_copy(finished, tmp_path / "run", 7)
    damage(run / "checkpoints" / "step_00000007" / "optimizer.safetensors")
    (run / "checkpoints" / "step_00000006" / "manifest.json").unlink()
    listener = Listener()
    resume(run, listener)
    assert outcome(run) == outcome(finished)
    notes = RunDir(run).result()["notes"]
    assert "step_00000007 is damaged (optimizer.safetensors" in notes[0]
    assert "step_00000006 is damaged (manifest.json" in notes[1]
    assert all("went on from step 5" in note for note in notes)
    assert listener.messages[:2] == notes
    assert checkpoint_folder.find_damage(run / "checkpoints" / "step_00000007") is None


def test_a_damaged_checkpoint_is_never_kept_in_the_place_of_a_good_one(tmp_path):
    recipe, path = tiny_recipe("train.checkpoint_every=3", "train.keep_last=2"), tmp_path / "run"
    with pytest.raises(Interrupted):
        train(recipe, path, Listener(lambda step: step == 8 and signal.raise_signal(signal.SIGTERM)))
    damage(path / "checkpoints" / "step_00000008" / "model.safetensors")
    resume(path)
    names = sorted(folder.name for folder in (path / "checkpoints").iterdir())
    assert names == ["step_00000006", "step_00000009"]


def test_without_any_good_checkpoint_the_run_starts_again(finished, tmp_path):
    run = unfinished_copy(finished, tmp_path / "run", 2)
    for path in (run / "checkpoints").iterdir():
        damage(path / "model.safetensors")
    listener = Listener()
    resume(run, listener)
    assert outcome(run) == outcome(finished)
    assert listener.messages[-1] == f"{run}: going on after step 0 of 9"


def test_full_disk_stops_the_run_and_resuming_goes_on(finished, tmp_path, monkeypatch):
    save_file = saved_tensors.save_file

    def fail_at_step_5(tensors, path):
        if ".step_00000005" in str(path):
            raise OSError(28, "No space left on device")
        save_file(tensors, path)

    with monkeypatch.context() as patch:
        patch.setattr(saved_tensors, "save_file", fail_at_step_5)
        with pytest.raises(UserError, match="No space left on device"):
            train(tiny_recipe(), tmp_path / "run")
    resume(tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(finished)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_its_step_with_a_checkpoint(finished, tmp_path, number):
    recipe = tiny_recipe("train.checkpoint_every=null")
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Interrupted, match=r"stopped at step 5 of 9.*`widthwise resume .*run` goes on") as caught:
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


def test_another_number_of_threads_is_noted(finished, tmp_path):
    run = unfinished_copy(finished, tmp_path / "run", 4)
    environment = RunDir(run).environment()
    n_threads = environment["n_threads"]
    (run / "environment.json").write_text(json.dumps({**environment, "n_threads": 63}))
    assert resume(run)["notes"] == [f"n_threads was 63 and is now {n_threads}: from here on not bitwise the same run"]


def test_wall_seconds_count_all_processes(finished, tmp_path):
    run = unfinished_copy(finished, tmp_path / "run", 4)
    folder = run / "checkpoints" / "step_00000004"
    before = json.loads((folder / "state.json").read_text())["wall_seconds"]
    assert resume(run)["wall_seconds"] > before > 0


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="not a run directory"):
        resume(tmp_path)


def test_inside_of_somebodys_autocast_no_cast_of_a_weight_outlives_its_update(tmp_path):
    recipe = tiny_recipe("train.precision=bf16")
    train(recipe, tmp_path / "alone")
    with torch.autocast("cpu", enabled=False):
        train(recipe, tmp_path / "inside")
    assert outcome(tmp_path / "inside") == outcome(tmp_path / "alone")
