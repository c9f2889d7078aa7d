"""Checkpoints in one file of weights and in several are read alike: for weights, to grow, and to convert."""

import shutil
from pathlib import Path

import pytest
from injected import train_run
from ranks import launched
from safetensors.torch import save_file
from tiny_runs import outcome, tiny_recipe, unfinished_copy
from typer.testing import CliRunner

from widthwise.cli.main import app
from widthwise.files import FileRecord, write_atomic
from widthwise.runs.train import train_or_resume
from widthwise.training.checkpoint_folder import (
    MANIFEST,
    RNG,
    STATE,
    SavedTensors,
    checkpoint_paths,
    find_damage,
    manifest_of,
)

pytestmark = pytest.mark.hard


def merge(run: Path) -> None:
    """Put the tensors of every checkpoint of a run into one file each."""
    for path in checkpoint_paths(run / "checkpoints"):
        manifest = manifest_of(path)
        records = {name: manifest.files[name] for name in (RNG, STATE)}
        for stem in ("model", "optimizer"):
            merged = path / f"{stem}.safetensors"
            with SavedTensors.opened(path, stem, manifest.n_shards) as saved:
                save_file({name: saved.whole(name) for name in saved.names}, merged)
            records[merged.name] = FileRecord.of(merged)
        write_atomic(path / MANIFEST, manifest.model_copy(update={"n_shards": 1, "files": records}).content())
        for shard in path.glob("*-of-*.safetensors"):
            shard.unlink()
        assert find_damage(path) is None


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two folders with a text and a run that other formats can hold: of two processes, and merged."""
    shards, merged = (tmp_path_factory.mktemp(name) for name in ("shards", "merged"))
    recipe = tiny_recipe("model.shape={kind: uniform}", "train.shards=2", "train.steps=3")
    launched(2, train_run, recipe, shards / "run", errors=shards / "errors", codes=[0, 0])
    (shards / "text.txt").write_text("Some text that is read.\n" * 20)
    shutil.copytree(shards, merged, dirs_exist_ok=True)
    merge(merged / "run")
    return [shards, merged]


@pytest.mark.parametrize("command", ["eval run --text text.txt", "grow run --add-layers 2 --out out", "export run hf"])
def test_a_verb_reads_both_forms_alike(folders, monkeypatch, command):
    found = []
    for folder in folders:
        monkeypatch.chdir(folder)
        done = CliRunner().invoke(app, command.split())
        assert done.exit_code == 0, (done.output, done.exception)
        weights = {path: path.read_bytes() for name in ("out", "hf") for path in Path(name).rglob("model.safetensors")}
        found.append((done.stdout, weights))
    assert found[0] == found[1]


def test_one_process_goes_on_with_both_forms_alike(finished, tmp_path):
    runs = [unfinished_copy(finished, tmp_path / name, 6) for name in ("shards", "merged")]
    merge(runs[1])
    for run in runs:
        train_or_resume(tiny_recipe("train.micro_batch_size=1"), run)
    assert outcome(runs[0]) == outcome(runs[1])
