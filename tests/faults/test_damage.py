"""A checkpoint of several processes of which anything is missing or changed is named, and the one before is used."""

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from file_operations import flip_a_bit, forge
from injected import run_command
from ranks import launched
from tiny_runs import outcome, unfinished_copy

from widthwise.run_dir import RunDir
from widthwise.runs.open import open_model
from widthwise.training.checkpoint_folder import MANIFEST, find_damage, latest_valid

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def truncate(path: Path) -> None:
    os.truncate(path / SECOND, (path / SECOND).stat().st_size // 2)


def swap(path: Path) -> None:
    aside = path / "aside"
    (path / FIRST).rename(aside)
    (path / SECOND).rename(path / FIRST)
    aside.rename(path / SECOND)


def of_other_shards(n_shards: int) -> Callable[[Path], None]:
    return lambda path: forge(path / MANIFEST, lambda manifest: manifest.update(n_shards=n_shards))


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a shard removed": (lambda path: (path / SECOND).unlink(), SECOND),
    "a shard truncated": (truncate, SECOND),
    "shards swapped": (swap, FIRST),
    "a shard of another step": (lambda path: shutil.copy(path.parent / "step_00000003" / SECOND, path), SECOND),
    "a bit flipped": (lambda path: flip_a_bit(path / SECOND), SECOND),
    "said to be of one process": (of_other_shards(1), MANIFEST),
    "said to be of three processes": (of_other_shards(3), MANIFEST),
    "said to be of too many processes": (of_other_shards(10**12), MANIFEST),
}


def test_damage_is_named_and_the_checkpoint_before_is_used(finished, tmp_path):
    for name, (damage, named) in DAMAGES.items():
        run = unfinished_copy(finished, tmp_path / name, 6)
        newest = run / "checkpoints" / "step_00000006"
        damage(newest)
        found, (said,) = latest_valid(run / "checkpoints")
        assert found == run / "checkpoints" / "step_00000005"
        assert str(said).startswith(f"checkpoint step_00000006 is damaged ({named}"), name
        trained = open_model(run)
        assert (trained.step, [each.path for each in trained.damages]) == (5, [newest])


@pytest.mark.hard
def test_several_processes_pass_over_damaged_checkpoints_and_end_bitwise(recipe_file, finished, tmp_path):
    run = unfinished_copy(finished, tmp_path / "run", 7)
    swap(run / "checkpoints" / "step_00000007")
    (run / "checkpoints" / "step_00000006" / SECOND).unlink()
    command = ("train", str(recipe_file), "--out", str(run))
    launched(2, run_command, command, errors=tmp_path / "errors", codes=[0, 0])
    assert outcome(run) == outcome(finished)
    damaged = [note.partition(" is damaged")[0] for note in RunDir(run).result().notes]
    assert damaged == ["checkpoint step_00000007", "checkpoint step_00000006"]
    assert [find_damage(path) for path in (run / "checkpoints").iterdir()] == [None] * 9


class Malicious:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Callable[[Path, str], int], tuple[Path, str]]:
        return Path.write_text, (self.path, "executed")


@pytest.mark.hard
def test_pickles_beside_the_shards_are_never_read(recipe_file, finished, tmp_path):
    """torch's distributed checkpoints are pickles of these names."""
    run, proof = unfinished_copy(finished, tmp_path / "run", 6), tmp_path / "proof"
    pickle.loads(pickle.dumps(Malicious(proof)))
    proof.unlink()  # it works
    for folder in (run, run / "checkpoints", run / "checkpoints" / "step_00000006"):
        for name in (".metadata", "__0_0.distcp", "__1_0.distcp", "model.pt", "rng.pt", "state.pkl"):
            (folder / name).write_bytes(pickle.dumps(Malicious(proof)))
    assert open_model(run).step == 6
    command = ("train", str(recipe_file), "--out", str(run))
    launched(2, run_command, command, errors=tmp_path / "errors", codes=[0, 0])
    assert outcome(run) == outcome(finished)
    assert not proof.exists()
