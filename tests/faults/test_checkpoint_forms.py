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


def merge(run: Path) -> int:
    """Put the tensors of every checkpoint of a run into one file each, and return the number of checkpoints."""
    paths = checkpoint_paths(run / "checkpoints")
    for path in paths:
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
    return len(paths)


VERBS = {
    "eval": ("{run}", "--text", "{text}"),
    "grow": ("{run}", "--add-layers", "2", "--out", "{out}"),
    "export": ("{run}", "{out}"),
}


def read_by(verb: str, run: Path, out: Path, text: Path) -> dict[str, bytes]:
    """The weights that a verb makes of a run, if it makes some."""
    arguments = [each.format(run=run, out=out, text=text) for each in VERBS[verb]]
    done = CliRunner().invoke(app, [verb, *arguments])
    assert done.exit_code == 0, (done.output, done.exception)
    return {path.name: path.read_bytes() for path in out.rglob("model.safetensors")} | {"said": done.stdout.encode()}


@pytest.fixture(scope="module")
def uniform(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that other formats can hold, with the checkpoints of two processes."""
    folder = tmp_path_factory.mktemp("uniform")
    recipe = tiny_recipe("model.shape={kind: uniform}", "train.shards=2", "train.steps=3")
    launched(2, train_run, recipe, folder / "run", errors=folder / "errors", codes=[0, 0])
    return folder / "run"


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_reads_both_forms_alike(uniform, tmp_path, verb):
    (text := tmp_path / "text.txt").write_text("Some text that is read.\n" * 20)
    found = []
    for _ in range(2):
        run, out = shutil.copytree(uniform, tmp_path / "run"), tmp_path / "out"
        if found:
            assert merge(run) == 3
        found.append(read_by(verb, run, out, text))
        shutil.rmtree(run)
        shutil.rmtree(out, ignore_errors=True)
    assert found[0] == found[1]


def test_one_process_goes_on_with_both_forms_alike(finished, tmp_path):
    runs = [unfinished_copy(finished, tmp_path / name, 6) for name in ("shards", "merged")]
    merge(runs[1])
    for run in runs:
        train_or_resume(tiny_recipe("train.micro_batch_size=1"), run)
    assert outcome(runs[0]) == outcome(runs[1])
