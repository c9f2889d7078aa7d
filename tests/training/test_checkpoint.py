"""Checkpoints: saving and loading, damage, tensors in one file or in one per shard, and retention."""

import errno
import json
import os
import shutil
import stat
from collections import deque
from itertools import combinations_with_replacement
from pathlib import Path

import pytest
import torch
from boxes import refusal
from file_operations import forge
from growing_runs import MUON
from safetensors.torch import load_file, save_file
from thinned import in_turn
from tiny_runs import Listener, outcome, step_config, tiny_recipe
from torch import Tensor

from widthwise.files import FileRecord
from widthwise.model.decoder import build
from widthwise.runs.train import resume, train
from widthwise.training import checkpoint, checkpoint_folder
from widthwise.training.state import RunState

FILES = (*checkpoint_folder.file_names(), checkpoint_folder.MANIFEST)
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
    return [
        checkpoint.write(folder, step, checkpoint.take_snapshot(model, optimizer), {"step": step}) for step in steps
    ]


@pytest.mark.parametrize(("tie", "optimizers"), [("false", ()), ("true", (MUON,))])
def test_loading_restores_weights_optimizer_random_states_and_state(tmp_path, tie, optimizers):
    model, optimizer = trained(1, f"model.tie_embeddings={tie}", *optimizers)
    state = RunState(window_steps=3, step=7, unlogged_losses=[0.1, 1 / 3], recent_losses=deque([2 / 3]))
    path = checkpoint.write(tmp_path, 7, checkpoint.take_snapshot(model, optimizer), state.as_data())
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
    """Return a function that changes the bytes of a file."""
    return lambda file: file.write_bytes(change(file.read_bytes()))


def with_a_bit_flipped(content: bytes, position: int) -> bytes:
    return content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]


flip_a_bit = with_content(lambda content: with_a_bit_flipped(content, len(content) // 2))
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
        file.write_bytes(with_a_bit_flipped(content, position))
        if checkpoint_folder.find_damage(path) is None:
            assert json.loads(file.read_bytes()) == json.loads(content), position
    file.write_bytes(content)
    path.rename(tmp_path / "step_00000005")  # another step than the manifest says
    assert checkpoint_folder.latest_valid(tmp_path)[0] is None


def test_what_save_did_not_name_is_neither_used_nor_counted_nor_deleted_but_leftovers_of_killed_processes(tmp_path):
    """Names with letters sort above digits, so that copies once pushed out every checkpoint."""
    newest = saved(tmp_path, 2, 4)[-1]
    foreign = [tmp_path / name for name in ("step_best", "step_4", "step_00000004.bak", "step_00000004 copy", "step_")]
    for path in foreign:
        shutil.copytree(newest, path)
    half, leftover = tmp_path / ".step_best.partial", tmp_path / ".step_00000005.partial"
    half.mkdir()
    shutil.copytree(newest, leftover)
    assert checkpoint_folder.latest_valid(tmp_path) == (newest, [])
    checkpoint_folder.prune(tmp_path, step_config(keep_last=1))
    checkpoint_folder.remove_partial(tmp_path)
    assert set(tmp_path.iterdir()) == {newest, half, *foreign}


def with_tensors(change):
    """Return a function that changes the tensors of a file."""

    def edit(file: Path) -> None:
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file)

    return edit


RNG, STATE = checkpoint_folder.RNG, "state.json"
WRONG = (
    (MODEL, with_tensors(dict.clear)),
    (MODEL, with_tensors(lambda tensors: tensors.update({name: tensor.long() for name, tensor in tensors.items()}))),
    (OPTIMIZER, with_tensors(lambda tensors: tensors.update({"x.exp_avg": torch.zeros(1)}))),
    (OPTIMIZER, with_tensors(lambda tensors: tensors.pop("embedding.weight.exp_avg"))),
    (OPTIMIZER, with_tensors(lambda tensors: tensors.update({"embedding.weight.exp_avg": torch.zeros(1)}))),
    (RNG, with_tensors(dict.clear)),
    (RNG, with_tensors(lambda tensors: tensors.update(cpu=torch.zeros(3)))),
    (MODEL, with_content(lambda _: b"")),
    (OPTIMIZER, with_content(lambda _: b"\xff" * 100)),
    (RNG, with_content(lambda _: b"[]")),
    (STATE, with_content(lambda _: b"[]")),
    (STATE, with_content(lambda _: b'{"step": "x"}')),
    (STATE, with_content(lambda _: b'{"window_steps": 1, "steps": 7}')),
    (STATE, with_content(lambda _: json.dumps(RunState(window_steps=1, step=6).as_data()).encode())),
)
"""Files with a valid checksum and wrong content, such as integer weights, a moment of an unknown parameter, a missing
moment, a moment of another shape, and (the last) the state of another step."""


@pytest.mark.parametrize("name", checkpoint_folder.file_names())
def test_a_right_manifest_of_wrong_content_is_refused(tmp_path, name):
    for edit in (edit for of, edit in WRONG if of == name):
        state = RunState(window_steps=1, step=7).as_data()
        path = checkpoint.write(tmp_path, 7, checkpoint.take_snapshot(*trained(1)), state)
        edit(path / name)
        files = {file: FileRecord.of(path / file).model_dump() for file in checkpoint_folder.file_names()}
        forge(path / checkpoint_folder.MANIFEST, lambda manifest, files=files: manifest.update(files=files))
        assert checkpoint_folder.latest_valid(tmp_path) == (path, [])
        assert name in refusal(checkpoint.load, path, *trained(2))


@pytest.mark.parametrize("failing_file", FILES)
def test_full_disk_leaves_the_checkpoint_before_intact_and_nothing_half_written(tmp_path, monkeypatch, failing_file):
    (good,) = saved(tmp_path, 3)
    fsync = checkpoint.fsync

    def fail_for_one(path: Path) -> None:
        if path.name == failing_file:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(path)

    monkeypatch.setattr(checkpoint, "fsync", fail_for_one)
    monkeypatch.setattr(checkpoint_folder, "fsync", fail_for_one)
    assert "step_00000004: cannot be written (No space left on device)" in refusal(saved, tmp_path, 4)
    assert list(tmp_path.iterdir()) == [good]
    assert checkpoint_folder.latest_valid(tmp_path) == (good, [])


Tensors = dict[str, Tensor]


def tensors() -> Tensors:
    """Return tensors with 7, 2 and 4 rows, and a scalar. With 5 shards, some have no row of `pair`."""
    return {
        "matrix": torch.arange(21.0).view(7, 3),
        "pair": torch.tensor([0.5, 1.5], dtype=torch.bfloat16),
        "cube": torch.arange(24.0, dtype=torch.float64).view(4, 3, 2),
        "step": torch.tensor(5.0),
    }


def parts_of(whole: Tensors, n_shards: int) -> list[Tensors]:
    """Return the tensors of each shard, divided by `torch.chunk`."""
    parts: list[Tensors] = [{} for _ in range(n_shards)]
    for name, tensor in whole.items():
        chunks = tensor.chunk(n_shards) if tensor.shape else (tensor,) * n_shards
        for shard in range(n_shards):
            parts[shard][name] = chunks[shard] if shard < len(chunks) else tensor[:0]
    return parts


def written(folder: Path, parts: list[Tensors]) -> None:
    for shard, part in enumerate(parts):
        checkpoint_folder.write_tensors(part, folder / checkpoint_folder.file_name("model", shard, len(parts)))


@pytest.mark.parametrize("n_shards", [1, 2, 3, 5])
def test_tensors_and_their_rows_come_from_any_number_of_files(tmp_path: Path, n_shards: int) -> None:
    expected = tensors()
    written(tmp_path, parts_of(expected, n_shards))
    with checkpoint_folder.SavedTensors.opened(tmp_path, "model", n_shards) as saved:
        assert saved.names == expected.keys()
        saved.check({name: tensor.shape for name, tensor in expected.items()})
        for name, tensor in expected.items():
            found = saved.whole(name)
            assert found.dtype == tensor.dtype
            assert torch.equal(found, tensor)
        for first, last in combinations_with_replacement(range(8), 2):
            rows = saved.rows("matrix", slice(first, last))
            assert rows.shape == (last - first, 3)
            assert torch.equal(rows, expected["matrix"][first:last])


def check_two_files(folder: Path) -> None:
    with checkpoint_folder.SavedTensors.opened(folder, "model", 2) as saved:
        saved.check({name: tensor.shape for name, tensor in tensors().items()})


def test_files_that_are_missing_torn_or_of_other_tensors_are_named(tmp_path: Path) -> None:
    first, second = parts_of(tensors(), 2)
    written(tmp_path, [first, {name: tensor for name, tensor in second.items() if name != "pair"}])
    one, other = (checkpoint_folder.file_name("model", shard, 2) for shard in (0, 1))
    message = refusal(check_two_files, tmp_path)
    assert message.endswith(f"{other}: holds other tensors than {one}, such as pair")
    (tmp_path / other).write_bytes(b"no header")
    assert f"{other}: cannot be read" in refusal(check_two_files, tmp_path)
    (tmp_path / other).unlink()
    assert f"{other}: cannot be read" in refusal(check_two_files, tmp_path)


MATRIX = torch.zeros(4, 3)
UNEQUAL = [
    ({"matrix": torch.zeros(3, 3)}, {"matrix": MATRIX}, "matrix has shape"),
    ({"matrix": torch.zeros(7, 3)}, {"matrix": torch.zeros(0, 3)}, "matrix has shape"),
    ({}, {"matrix": torch.zeros(2, 3)}, "matrix has shape"),
    ({}, {"matrix": torch.zeros(3, 5)}, "matrix has shape (3, 5) in shard 2 of 2"),
    ({}, {"step": torch.zeros(1)}, "step has shape"),
    ({}, {"matrix": torch.zeros(3, 3).double()}, "matrix is of type"),
    ({"matrix": MATRIX.long()}, {}, "matrix is of type"),
    ({}, {"matrix": torch.zeros(3, 3).bool()}, "matrix is of type"),
]
"""Tensors that replace those of the first and the second file (matrix: 4 and 3 rows), and the error."""


def test_rows_columns_and_types_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    for first, second, said in UNEQUAL:
        parts = parts_of(tensors(), 2)
        written(tmp_path, [{**parts[0], **first}, {**parts[1], **second}])
        assert said in refusal(check_two_files, tmp_path)


def test_what_is_written_need_not_be_contiguous_and_is_as_readable_as_other_files(tmp_path: Path) -> None:
    turned, before = torch.arange(6.0).view(2, 3).T, os.umask(0o027)
    try:
        checkpoint_folder.write_tensors({"turned": turned}, tmp_path / "model.safetensors")
    finally:
        os.umask(before)
    with checkpoint_folder.SavedTensors.opened(tmp_path, "model", 1) as saved:
        assert torch.equal(saved.whole("turned"), turned)
    assert stat.S_IMODE((tmp_path / "model.safetensors").stat().st_mode) == 0o640


def steps_of(path: Path) -> list[int]:
    return sorted(map(checkpoint_folder.step_of, checkpoint_folder.checkpoint_paths(path / "checkpoints")))


def test_a_checkpoint_stays_if_any_rule_keeps_it() -> None:
    for last, every, kept in ((1, None, {9}), (2, None, {9, 8}), (1, 3, {9, 6, 3}), (2, 4, {9, 8, 4})):
        config = step_config(keep_last=last, keep_every=every, checkpoint_every=1)
        assert checkpoint_folder.kept_steps([9, 8, 6, 4, 3], config) == kept


class Killed(BaseException):
    """Ends a run without cleanup, like a kill."""


@pytest.mark.parametrize("in_background", ["false", "true"])
def test_a_killed_run_keeps_what_one_that_was_not_does(tmp_path: Path, in_background: str) -> None:
    rules = ("train.keep_last=1", "train.keep_every=4", f"train.checkpoint_in_background={in_background}")
    recipe = tiny_recipe("train.steps=11", *rules)
    train(recipe, tmp_path / "whole")
    assert steps_of(tmp_path / "whole") == [4, 8, 11]
    for step in (5, 11):

        def kill(now: int, last: int = step) -> None:
            if now == last:
                raise Killed

        run = tmp_path / str(step)
        with pytest.raises(Killed):
            train(recipe, run, Listener(kill))
        resume(run)
        assert outcome(run) == outcome(tmp_path / "whole")
        assert steps_of(run) == [4, 8, 11]


def test_a_lower_keep_last_deletes_before_the_next_checkpoint_is_written(tmp_path: Path) -> None:
    def kill(now: int) -> None:
        if now == 5:
            raise Killed

    with pytest.raises(Killed):
        train(tiny_recipe(), tmp_path / "run", Listener(kill))
    assert steps_of(tmp_path / "run") == [1, 2, 3, 4]
    with pytest.raises(Killed):
        resume(tmp_path / "run", Listener(kill), ["train.keep_last=2"])
    assert steps_of(tmp_path / "run") == [3, 4]


def test_rules_that_could_never_keep_anything_are_refused() -> None:
    for every in ("2", "null"):
        message = refusal(tiny_recipe, f"train.checkpoint_every={every}", "train.keep_every=5")
        assert "keep_every: got 5; must be a multiple of checkpoint_every" in message
    assert "train.keep_best: unknown key; was removed; keep_every keeps" in refusal(tiny_recipe, "train.keep_best=true")
