"""Many runs in one launch of several processes, whose start is what costs.

torchrun --standalone --nproc-per-node N benchmarks/train_many.py ORDERS.json
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import torch

from widthwise.config_io import to_data
from widthwise.recipe.recipe import Recipe, parse_recipe
from widthwise.runs.train import launched_processes, train_or_resume
from widthwise.training.launch import Interrupted
from widthwise.training.observer import SilentObserver


class Order(TypedDict):
    """A run to begin, or to go on with."""

    recipe: dict[str, Any]
    out: str
    dtype: str
    """Of all that is computed, `float32` or `float64`."""
    stop_at: int | None
    """The step after which the first process gets SIGTERM."""


def order(recipe: Recipe, out: Path, dtype: str = "float32", stop_at: int | None = None) -> Order:
    return Order(recipe=to_data(recipe), out=str(out), dtype=dtype, stop_at=stop_at)


class _Stop(SilentObserver):
    def __init__(self, step: int | None):
        self._step = step

    def step_done(self, step: int) -> None:
        if step == self._step:
            signal.raise_signal(signal.SIGTERM)


def carry_out(orders: Sequence[Order]) -> None:
    """Trains the runs one after the other, in all processes that were started together."""
    before = torch.get_default_dtype()
    for each in orders:
        torch.set_default_dtype(getattr(torch, each["dtype"]))
        try:
            train_or_resume(parse_recipe(each["recipe"], "order"), each["out"], _Stop(each["stop_at"]))
        except Interrupted:
            assert each["stop_at"] is not None
        finally:
            torch.set_default_dtype(before)


def launch(n_processes: int, script: Path, *arguments: object) -> None:
    """Starts a script in several processes by torchrun and waits for them. Raises RuntimeError where they fail.

    They find the same modules as this process.
    """
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n_processes}"]
    done = subprocess.run(
        [*torchrun, str(script), *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{script.name} on {n_processes} processes: {done.stdout[-6000:]}")


def train_on(n_processes: int, orders: Sequence[Order], folder: Path) -> None:
    """Trains runs on so many processes; a single one is this one. folder: for the orders."""
    if n_processes == 1:
        carry_out(orders)
        return
    path = folder / f"orders_{n_processes}.json"
    path.write_text(json.dumps(orders))
    launch(n_processes, Path(__file__).resolve(), path)


def main() -> None:
    orders: list[Order] = json.loads(Path(sys.argv[1]).read_text())
    with launched_processes(parse_recipe(orders[0]["recipe"], "order").train):
        carry_out(orders)


if __name__ == "__main__":
    main()
