"""A merge that is killed leaves valid checkpoints, and every verb reads both forms of a run."""

import shutil
from pathlib import Path

import pytest
import torch
from file_operations import keep_states
from injected import train_run
from ranks import launched
from tiny_runs import outcome, tiny_recipe, unfinished_copy
from typer.testing import CliRunner

from widthwise.cli.main import app
from widthwise.runs.train import train_or_resume
from widthwise.runs.trained import merge
from widthwise.training.checkpoint_folder import MANIFEST, checkpoint_paths, files, find_damage, manifest_of
from widthwise.training.saved_tensors import SavedTensors

pytestmark = pytest.mark.hard


def tensors(path: Path) -> dict[str, torch.Tensor]:
    """Those of a checkpoint of any form, with the name of their file in front."""
    found = {}
    for stem in ("model", "optimizer"):
        with SavedTensors.opened(path, stem, manifest_of(path).n_shards) as saved:
            found |= {f"{stem}.{name}": saved.whole(name) for name in saved.names}
    return found


def same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def merge_watched(run: Path, states: Path) -> None:
    keep_states(run, states)
    merge(run)


def test_killed_before_any_file_operation_the_checkpoint_is_valid_and_the_next_merge_ends_it(finished, tmp_path):
    run, states = unfinished_copy(finished, tmp_path / "run", 1), tmp_path / "states"
    (path,) = checkpoint_paths(run / "checkpoints")
    expected = tensors(path)
    launched(1, merge_watched, run, states, errors=tmp_path / "errors", codes=[0])
    killed = sorted(states.iterdir())
    for state in killed:
        shutil.rmtree(run)
        shutil.copytree(state, run)
        assert find_damage(path) is None, state
        assert same(tensors(path), expected), state
        merge(run)
        assert {each.name for each in path.iterdir()} == {*files(), MANIFEST}, state
        assert same(tensors(path), expected), state
    assert len(killed) > 5


VERBS = {
    "generate": ("{run}", "--prompt", "a", "--max-new-tokens", "3"),
    "eval": ("{run}", "--text", "{text}"),
    "grow": ("{run}", "--add-layers", "2", "--out", "{out}"),
    "pad": ("{run}", "--d-ff-multiple", "7", "--out", "{out}"),
    "export": ("{run}", "{out}"),
    "analyze": ("{run}", "--tokens", "200", "--out", "{out}"),
    "report": ("{run}",),
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
def test_every_verb_reads_both_forms_alike(uniform, tmp_path, verb):
    (text := tmp_path / "text.txt").write_text("Some text that is read.\n" * 20)
    found = []
    for _ in range(2):
        run, out = shutil.copytree(uniform, tmp_path / "run"), tmp_path / "out"
        if found:
            assert len(merge(run)) == 3
        found.append(read_by(verb, run, out, text))
        shutil.rmtree(run)
        shutil.rmtree(out, ignore_errors=True)
    if verb != "analyze":  # which says how long it took
        assert found[0] == found[1]
    assert found[0].keys() == found[1].keys()


def test_one_process_goes_on_with_both_forms_alike(finished, tmp_path):
    runs = [unfinished_copy(finished, tmp_path / name, 6) for name in ("shards", "merged")]
    merge(runs[1])
    for run in runs:
        train_or_resume(tiny_recipe("train.micro_batch_size=1"), run)
    assert outcome(runs[0]) == outcome(runs[1])
