"""Trains a tiny run in child processes that are killed; run by test_kill.py.

kill_runs.py moments WORK N SEED     kills -9 at N random moments of one run, which then finishes
kill_runs.py KIND WORK               goes on from what a kill before any single file operation of such a run leaves

Prints a line of JSON: how many were killed. The children are forked so that importing torch is paid once; the
parent never runs a model, because threads do not survive a fork.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from file_operations import keep_states
from growing_runs import UNIFORM
from tiny_runs import outcome, tiny_recipe

from widthwise.data.config import open_data
from widthwise.runs.train import train_or_resume

EVERY_STEP = "train.checkpoint_every=1"
JUMPY = ("optimizer.lr=0.2", "schedule={kind: constant, warmup_steps: 1}")


def child(recipe, path: Path, prepare: Callable[[], None] = lambda: None) -> int:
    """A process that trains, or goes on with, the run in `path`."""
    process = os.fork()
    if process == 0:
        prepare()
        train_or_resume(recipe, path)
        os._exit(0)
    return process


def exit_signal(process: int) -> int:
    """0 where the process ended well, else the signal that ended it."""
    _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "a child failed; its error stands above"
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def kill_at_random_moments(work: Path, n_kills: int, seed: int) -> int:
    recipe = tiny_recipe("train.steps=40", "train.checkpoint_every=7", "train.log_every=4", "train.keep_last=2")
    started = time.monotonic()
    exit_signal(child(recipe, work / "whole"))
    longest = time.monotonic() - started
    moments, n_killed, path = random.Random(seed), 0, work / "killed"
    while n_killed < n_kills:
        process = child(recipe, path)
        time.sleep(moments.uniform(0.0, 0.7 * longest))
        os.kill(process, signal.SIGKILL)
        n_killed += exit_signal(process) == signal.SIGKILL
        if (path / "result.json").exists():
            assert outcome(path) == outcome(work / "whole")
            shutil.rmtree(path)
    exit_signal(child(recipe, path))
    assert outcome(path) == outcome(work / "whole")
    return n_killed


def kill_before_operations(work: Path, *overrides: str, kept: Sequence[int]) -> int:
    """Goes on from every state that a kill before a file operation would leave; returns how many these are."""
    steps = ("train.steps=4", "train.checkpoint_every=2", "train.keep_last=1", "train.validate_every=2")
    recipe = tiny_recipe(*steps, *overrides)
    path, states = work / "run", work / "states"
    exit_signal(child(recipe, path, partial(keep_states, path, states)))
    whole, killed = outcome(path), sorted(states.iterdir())
    for state in killed:
        shutil.rmtree(path)
        shutil.copytree(state, path)
        exit_signal(child(recipe, path))
        assert outcome(path) == whole, f"killed in {state}"
        left = {item.name for item in (path / "checkpoints").iterdir()}
        assert left == {f"step_{step:08d}" for step in kept}, f"killed in {state}"
    return len(killed)


KINDS: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "plain": ((), (4,)),
    "growth": ((UNIFORM, "growth=[{at_step: 2, model: {n_layers: 4}}]"), (4,)),
    "keep": (("train.keep_best=true", EVERY_STEP, "train.validate_every=1", *JUMPY), (2, 4)),
}
"""Kind -> its overrides, and the checkpoints that stay; the best one is not the last."""


if __name__ == "__main__":
    torch.set_num_threads(1)
    open_data(tiny_recipe().data)
    os.fsync = lambda handle: None  # a killed process loses nothing that it has handed to the system
    mode, folder = sys.argv[1], Path(sys.argv[2])
    if mode == "moments":
        n = kill_at_random_moments(folder, int(sys.argv[3]), int(sys.argv[4]))
    else:
        overrides, kept = KINDS[mode]
        n = kill_before_operations(folder, *overrides, kept=kept)
    print(json.dumps({"n_killed": n}))
