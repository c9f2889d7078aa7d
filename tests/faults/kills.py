"""Kills processes of a run at random moments, starts them again, and compares with a run that nobody disturbed.

kills.py WORK N SEED N_PROCESSES SHARDS [KEY=VALUE ...]     until N launches were killed

A kill hits one of the processes, and a moment later the others, as torchrun does; or all at once. It comes within
0.05 s of a step, which is longer than a step takes with its checkpoint, or within the second in which all start.
"""

import random
import shutil
import sys
import time
from pathlib import Path

from injected import killed_after, on_rank, train_run
from ranks import Launch, launched
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


if __name__ == "__main__":
    folder, numbers, overrides = sys.argv[1], sys.argv[2:6], sys.argv[6:]
    begun = time.monotonic()
    n_launches = kill_at_random_moments(Path(folder), *map(int, numbers), *overrides)
    print(
        f"{numbers[0]} of {n_launches} launches killed, {time.monotonic() - begun:.0f} s; bitwise the undisturbed run"
    )
