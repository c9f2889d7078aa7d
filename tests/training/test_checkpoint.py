import errno
import json
import shutil
from collections import deque
from pathlib import Path

import pytest
import torch
from boxes import refusal
from file_operations import forge
from growing_runs import MUON
from safetensors.torch import load_file, save_file
from thinned import in_turn
from tiny_runs import step_config, tiny_recipe

from widthwise.files import FileRecord
from widthwise.model.decoder import build
from widthwise.training import checkpoint, checkpoint_folder
from widthwise.training.checkpoint_folder import prune
from widthwise.training.state import RunState

FILES = (*checkpoint_folder.files(), checkpoint_folder.MANIFEST)
MODEL, OPTIMIZER = "model.safetensors", "optimizer.safetensors"


def trained(seed: int, *overrides: str):
    recipe = tiny_recipe(*overrides)
    model = build(recipe.explicit_model, seed)
    optimizer = recipe.optimizer.build(model)
    tokens = torch.arange(40).view(2, 20) + seed
    for _ in range(2):
        optimizer.zero_grad()
        model.loss(tokens[:, :-1], tokens[:, 1:])[0].backward()
        optimizer.step()
    return model, optimizer


def saved(folder: Path, *steps: int) -> list[Path]:
    model, optimizer = trained(1)
    return [checkpoint.write(folder, step, checkpoint.Snapshot.of(model, optimizer), {"step": step}) for step in steps]


@pytest.mark.parametrize(("tie", "optimizers"), [("false", ()), ("true", (MUON,))])
def test_loading_restores_weights_optimizer_random_states_and_state(tmp_path, tie, optimizers):
    model, optimizer = trained(1, f"model.tie_embeddings={tie}", *optimizers)
    state = RunState(window_steps=3, step=7, unlogged_losses=[0.1, 1 / 3], recent_losses=deque([2 / 3]))
    path = checkpoint.write(tmp_path, 7, checkpoint.Snapshot.of(model, optimizer), state.as_data())
    drawn = torch.rand(3)
    other, other_optimizer = trained(2, f"model.tie_embeddings={tie}", *optimizers)
    assert checkpoint.load(path, other, other_optimizer) == state
    assert torch.equal(torch.rand(3), drawn)
    for (name, ours), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs), name
        expected, found = optimizer.state[ours], other_optimizer.state[theirs]
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[part], found[part]) for part in expected), name
    assert (other.head.weight is other.embedding.weight) == (tie == "true")


def test_newest_checkpoint_is_found_by_number(tmp_path):
    assert checkpoint_folder.latest_valid(tmp_path / "absent") == (None, [])
    paths = saved(tmp_path, 2, 9, 10, 99_999_999, 100_000_000)
    assert checkpoint_folder.checkpoint_paths(tmp_path) == paths[::-1]
    assert checkpoint_folder.latest_valid(tmp_path) == (paths[-1], [])


def with_content(change):
    """An edit of a file's bytes."""
    return lambda file: file.write_bytes(change(file.read_bytes()))


def with_a_bit_flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


flip_a_bit = with_content(with_a_bit_flipped)
truncate = with_content(lambda content: content[: len(content) // 2])


@in_turn(("name", FILES), ("damage", [truncate, flip_a_bit, with_content(lambda content: b""), Path.unlink]))
def test_damage_to_any_file_is_found_and_the_checkpoint_before_is_used(tmp_path, name, damage):
    good, newest = saved(tmp_path, 3, 4)
    damage(newest / name)
    path, damages = checkpoint_folder.latest_valid(tmp_path)
    assert path == good
    assert [damage.path for damage in damages] == [newest]
    # A flipped bit of the manifest shows as a file that differs from it; the next test is about those.
    assert name in str(damages[0]) or (name, damage) == (checkpoint_folder.MANIFEST, flip_a_bit)
    assert "step_00000004" in str(damages[0])


def test_every_single_flipped_bit_of_the_manifest_is_harmless_or_found(tmp_path):
    (path,) = saved(tmp_path, 4)
    file = path / checkpoint_folder.MANIFEST
    content = file.read_bytes()
    for position in range(len(content)):
        file.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        if checkpoint_folder.find_damage(path) is None:
            assert json.loads(file.read_bytes()) == json.loads(content), position
    file.write_bytes(content)
    path.rename(tmp_path / "step_00000005")  # another step than the manifest says
    assert checkpoint_folder.latest_valid(tmp_path)[0] is None


def test_saving_replaces_a_damaged_one_and_pruning_keeps_the_newest_good_ones(tmp_path):
    paths = saved(tmp_path, 1, 2, 3, 4, 5)
    truncate(paths[4] / "model.safetensors")
    truncate(paths[3] / "model.safetensors")
    _, damages = checkpoint_folder.latest_valid(tmp_path)
    saved(tmp_path, 4)
    assert checkpoint_folder.find_damage(paths[3]) is None
    prune(tmp_path, step_config(), damages)
    assert checkpoint_folder.checkpoint_paths(tmp_path) == [paths[3], paths[2]]


def test_what_save_did_not_name_is_neither_used_nor_counted_nor_deleted(tmp_path):
    """Names with letters sort above digits, so that copies once pushed out every checkpoint."""
    newest = saved(tmp_path, 2, 4)[-1]
    foreign = [tmp_path / name for name in ("step_best", "step_4", "step_00000004.bak", "step_00000004 copy", "step_")]
    for path in foreign:
        shutil.copytree(newest, path)
    half = tmp_path / ".step_best.partial"
    half.mkdir()
    assert checkpoint_folder.latest_valid(tmp_path) == (newest, [])
    prune(tmp_path, step_config(keep_last=1))
    checkpoint_folder.remove_partial(tmp_path)
    assert set(tmp_path.iterdir()) == {newest, half, *foreign}


def vouch_for(path: Path) -> None:
    """Makes the manifest right for whatever the files hold."""
    files = {name: FileRecord.of(path / name).model_dump() for name in checkpoint_folder.files()}
    forge(path / checkpoint_folder.MANIFEST, lambda manifest: manifest.update(files=files))


WRONG_TENSORS = (
    (MODEL, lambda tensors: tensors.clear()),
    (MODEL, lambda tensors: tensors.update({name: tensor.long() for name, tensor in tensors.items()})),
    (OPTIMIZER, lambda tensors: tensors.update({"x.exp_avg": torch.zeros(1)})),
    (OPTIMIZER, lambda tensors: tensors.pop("embedding.weight.exp_avg")),
    (OPTIMIZER, lambda tensors: tensors.update({"embedding.weight.exp_avg": torch.zeros(1)})),
    (checkpoint_folder.RNG, lambda tensors: tensors.clear()),
    (checkpoint_folder.RNG, lambda tensors: tensors.update(cpu=torch.zeros(3))),
)
"""None at all, whole numbers, a moment of no parameter, none of a parameter, one of another shape, no random state."""


def with_tensors(change):
    """An edit of a file's tensors."""

    def edit(file: Path) -> None:
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file)

    return edit


STATE = "state.json"
WRONG = (
    *((name, with_tensors(change)) for name, change in WRONG_TENSORS),
    (MODEL, with_content(lambda _: b"")),
    (OPTIMIZER, with_content(lambda _: b"\xff" * 100)),
    (checkpoint_folder.RNG, with_content(lambda _: b"[]")),
    (STATE, with_content(lambda _: b"[]")),
    (STATE, with_content(lambda _: b'{"step": "x"}')),
    (STATE, with_content(lambda _: b'{"window_steps": 1, "steps": 7}')),
    (STATE, with_content(lambda _: json.dumps(RunState(window_steps=1, step=6).as_data()).encode())),
)
"""The last is the state of another step."""


@pytest.mark.parametrize("name", checkpoint_folder.files())
def test_a_right_manifest_of_wrong_content_is_refused(tmp_path, name):
    for edit in (edit for of, edit in WRONG if of == name):
        model, optimizer = trained(1)
        state = RunState(window_steps=1, step=7).as_data()
        path = checkpoint.write(tmp_path, 7, checkpoint.Snapshot.of(model, optimizer), state)
        edit(path / name)
        vouch_for(path)
        assert checkpoint_folder.latest_valid(tmp_path) == (path, [])
        assert name in refusal(checkpoint.load, path, *trained(2))


@pytest.mark.parametrize("failing_file", FILES)
def test_full_disk_leaves_the_checkpoint_before_intact_and_nothing_half_written(tmp_path, monkeypatch, failing_file):
    (good,) = saved(tmp_path, 3)
    fsync_file = checkpoint.fsync_file

    def fail_for_one(path: Path) -> None:
        if path.name == failing_file:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync_file(path)

    monkeypatch.setattr(checkpoint, "fsync_file", fail_for_one)
    monkeypatch.setattr(checkpoint_folder, "fsync_file", fail_for_one)
    assert "step_00000004: cannot be written (No space left on device)" in refusal(saved, tmp_path, 4)
    assert list(tmp_path.iterdir()) == [good]
    assert checkpoint_folder.latest_valid(tmp_path) == (good, [])


def test_leftovers_of_killed_processes_are_removed_and_never_taken_for_checkpoints(tmp_path):
    (path,) = saved(tmp_path, 4)
    leftover = tmp_path / ".step_00000005.partial"
    path.rename(leftover)
    assert checkpoint_folder.latest_valid(tmp_path) == (None, [])
    checkpoint_folder.remove_partial(tmp_path)
    assert list(tmp_path.iterdir()) == []
