"""Runs in two processes that train together, with spikes in the second one only; run by test_spikes.py.

spikes_on_two.py WORK     trains every case in WORK/NAME, and prints the results of each process.
"""

import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from tiny_runs import tiny_recipe

from widthwise.data.loader import Loader
from widthwise.mistakes import RunFailed
from widthwise.model.decoder import Decoder
from widthwise.recipe.recipe import Recipe
from widthwise.run_dir import RunDir
from widthwise.runs.train import launched_processes, train
from widthwise.training import metrics
from widthwise.training.observer import SilentObserver

SKIP = "train.on_spike={kind: skip, factor: 1000, window_steps: 3, max_skipped: 2}"
CASES: dict[str, tuple[Recipe, tuple[int, ...]]] = {
    "skip": (tiny_recipe(SKIP, "train.norms_every=3"), (3, 6)),
    "skip, shared": (tiny_recipe(SKIP, "train.norms_every=3", "train.shards=2"), (6,)),
}
"""Name -> recipe, and the batches whose gradient is NaN."""


def spoil(
    monkeypatch, factors: Mapping[int, float], moved: Mapping[int, int] | None = None, part: str = "objective"
) -> None:
    """Multiply the objective of batches by a factor, so that their gradients explode. Batches are counted from 0.

    moved: batch -> batch that the loader returns instead. part: `objective`, or `losses` for the reported losses.
    """
    number, load, loss = -1, Loader.batch, Decoder.loss

    def batch(loader: Loader, step: int) -> torch.Tensor:
        nonlocal number
        number = (moved or {}).get(step, step)
        return load(loader, number)

    def spoilt(model: Decoder, *arguments, **options):
        found = loss(model, *arguments, **options)
        return found._replace(**{part: getattr(found, part) * factors.get(number, 1.0)})

    monkeypatch.setattr(Loader, "batch", batch)
    monkeypatch.setattr(Decoder, "loss", spoilt)


def trained(recipe: Recipe, path: Path) -> str | None:
    """Train and return the reason why the run stopped; None if it has finished."""
    try:
        train(recipe, path)
    except RunFailed as failed:
        return str(failed)
    return None


def speed(rank: int) -> dict[str, float | int | None]:
    """Return the record of speed for rank + 1 seconds a step, unknown peak memory on rank 0, and 1 FLOP/s at most."""
    patch = pytest.MonkeyPatch()
    patch.setattr(metrics, "model_flops_utilization", lambda tokens, flops, device: tokens * flops)
    patch.setattr(metrics.PeakMemory, "n_bytes", lambda self: 1000 * rank or None)
    recipe = tiny_recipe("seq_len=15", "train.batch_size=4")
    with launched_processes(recipe.train) as processes:
        logger = metrics.MetricsLogger(RunDir("unused"), recipe, SilentObserver(), processes, print)
        logger.step_seconds.append(1.0 + rank)
        return logger.speed(flops_per_token=5)


if __name__ == "__main__":
    rank, found = int(os.environ["RANK"]), {}
    with launched_processes(tiny_recipe().train):
        for name, (recipe, batches) in CASES.items():
            with pytest.MonkeyPatch.context() as patch:
                spoil(patch, dict.fromkeys(batches if rank == 1 else (), math.nan))
                found[name] = trained(recipe, Path(sys.argv[1]) / name)
        found["speed"] = speed(rank)
    print(json.dumps(found) + "\n", end="", flush=True)
