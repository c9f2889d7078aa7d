"""A run whose process, or several, are killed at random moments ends bitwise as one that nobody disturbed.

A kill hits one of the processes, and a moment later the others, as torchrun does; or all at once. It comes within
0.05 s of a step, which is longer than a step takes with its checkpoint, or within the second in which all start.
"""

import random
import shutil
from pathlib import Path

import pytest
from injected import killed_after, on_rank, train_run
from ranks import Launch, launched
from thinned import hard_but
from tiny_runs import outcome, tiny_recipe

from widthwise.recipe.recipe import Recipe


def kill_at_random_moments(work: Path, n_kills: int, seed: int, n: int = 2, shards: int = 2, *overrides: str) -> int:
    """Returns how many launches there were: in each a kill, or the end of the run, which then begins anew."""
    steps = ("train.steps=24", "train.checkpoint_every=3", "train.keep_last=2", "train.micro_batch_size=1")
    recipe = tiny_recipe(*steps, f"train.shards={shards}", *overrides)
    finish(n, recipe, work, "whole")
    moments, path, n_killed, n_launches = random.Random(seed), work / "run", 0, 0
    while n_killed < n_kills:
        n_launches += 1
        n_steps, seconds = moments.randrange(10), moments.uniform(0.0, 0.05)
        kill = killed_after(n_steps, seconds if n_steps else 20 * seconds)
        fault = kill if moments.random() < 0.4 else on_rank(moments.randrange(n), kill)
        with Launch(n, train_run, recipe, path, fault, errors=work / "errors" / str(n_launches)) as launch:
            launch.wait_for_one()
            launch.wait(moments.uniform(0.0, 0.2))
        codes = launch.codes()
        assert -9 in codes or codes == [0] * n, launch.everything()
        n_killed += -9 in codes
        if (path / "result.json").exists():
            finish(n, recipe, work, "run")
            assert outcome(path) == outcome(work / "whole"), f"launch {n_launches}"
            shutil.rmtree(path)
    finish(n, recipe, work, "run")
    assert outcome(path) == outcome(work / "whole")
    return n_launches


def finish(n: int, recipe: Recipe, work: Path, name: str) -> None:
    """Trains to the end without a fault."""
    launched(n, train_run, recipe, work / name, errors=work / "errors" / name, codes=[0] * n)


STORMS = {
    "one": (4, 8, 1, 1),
    "one, often": (70, 8, 1, 1),
    "two": (2, 7, 2, 2),
    "two, often": (20, 8, 2, 2),
    "two, saving in the background": (4, 9, 2, 1, "train.checkpoint_in_background=true"),
    "four": (3, 10, 4, 2),
}
"""How many kills, of which seed, of how many processes in how many shards."""


@pytest.mark.parametrize("storm", hard_but(["one"], STORMS))
def test_a_run_killed_at_random_moments_ends_bitwise_as_one_that_was_not(tmp_path, storm):
    assert kill_at_random_moments(tmp_path, *STORMS[storm]) >= STORMS[storm][0]
