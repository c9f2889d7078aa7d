"""A run that is killed before any of its file operations ends bitwise as one that never was; at random moments,
see tests/faults."""

import shutil
from pathlib import Path

import pytest
from file_operations import keep_states
from growing_runs import UNIFORM
from ranks import launched
from thinned import hard_but
from tiny_runs import outcome, tiny_recipe

from widthwise.recipe.recipe import Recipe
from widthwise.runs.train import train, train_or_resume

STEPS = ("train.steps=4", "train.checkpoint_every=2", "train.keep_last=1", "train.validate_every=2")
EVERY_STEP = ("train.checkpoint_every=1", "train.validate_every=1")
JUMPY = ("optimizer.lr=0.2", "schedule={kind: constant, warmup_steps: 1}")
KINDS = {
    "plain": ((), [4], 31),
    "growth": ((UNIFORM, "growth=[{at_step: 2, model: {n_layers: 4}}]"), [4], 11),
    "keep": (("train.keep_best=true", *EVERY_STEP, *JUMPY), [2, 4], 21),
}
"""Kind -> overrides, the checkpoints that stay, and at least how many states the file operations of such a run leave;
the best checkpoint is not the last."""


def train_watched(recipe: Recipe, path: Path, states: Path) -> None:
    keep_states(path, states)
    train(recipe, path)


@pytest.mark.parametrize("kind", hard_but(["plain"], KINDS))
def test_killed_before_every_file_operation(kind, tmp_path):
    overrides, kept, n_states = KINDS[kind]
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
