"""Two trainings side by side, a thread each, against one after the other with two threads.

OMP_WAIT_POLICY=passive python benchmarks/jobs.py [--quick] [--out benchmarks/results/jobs_cpu.json]

It needs two free cores. What it finds decides `experiments.jobs.SMALL_STEP_FLOPS`.
"""

import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from harness import Part, cpu_command, quantiles
from loader import sources
from step_shares import recipe_of
from workloads import DTYPES

from widthwise.computing import Precision
from widthwise.data.loader import Loader
from widthwise.model.memory import keep_freed_memory
from widthwise.recipe.recipe import Recipe
from widthwise.training.train_state import TrainState

SHAPES = ((1, 2), (1, 8), (2, 8), (4, 8))
"""(times 128 wide, sequences of a step)."""


def sized(times: int, batch_size: int, precision: Precision, seq_len: int | None = None) -> Recipe:
    recipe = recipe_of("uniform", times, precision)
    train = recipe.train.model_copy(update={"batch_size": batch_size})
    return recipe.model_copy(update={"train": train, "seq_len": seq_len or recipe.seq_len})


def train_when_told(recipe: Recipe, n_threads: int, told: Connection) -> None:
    """In a process of its own: takes as many steps as it is told to, and answers with their wall seconds."""
    torch.set_num_threads(n_threads)
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        tokens = sources(Path(folder), 1, 4 * recipe.tokens_per_step)
        loader = Loader(tokens, seq_len=recipe.seq_len, batch_size=recipe.train.batch_size, seed=1)
        train_state = TrainState.untrained(recipe, recipe.phases[0])
        while n_steps := told.recv():
            began = time.perf_counter()
            for _ in range(n_steps):
                train_state.train_step(1, next(loader))
            told.send(time.perf_counter() - began)


@contextmanager
def trainings(recipe: Recipe, n: int, n_threads: int) -> Iterator[list[Connection]]:
    spawn = multiprocessing.get_context("spawn")
    ends, processes = [], []
    for _ in range(n):
        own, other = spawn.Pipe()
        processes.append(spawn.Process(target=train_when_told, args=(recipe, n_threads, other), daemon=True))
        ends.append(own)
        processes[-1].start()
        other.close()
    yield ends  # a failure leaves daemons, which end with this process
    for end in ends:
        end.send(0)
    for process in processes:
        process.join()


def seconds_of(workers: list[Connection], n_steps: int) -> float:
    """Until the last has taken its steps."""
    for worker in workers:
        worker.send(n_steps)
    return max(worker.recv() for worker in workers)


def side_by_side(recipe: Recipe, n_rounds: int, seconds_a_turn: float) -> dict[str, Any]:
    """Wall time of two runs in turn with two threads, over that of both at a time with one."""
    with trainings(recipe, 1, 2) as alone, trainings(recipe, 2, 1) as pair:
        n_steps = 1
        for workers in (alone, pair):
            seconds_of(workers, 1)
            n_steps = max(n_steps, round(seconds_a_turn / seconds_of(workers, 1)))
        rounds = [(seconds_of(alone, n_steps), seconds_of(pair, n_steps)) for _ in range(n_rounds)]
    gain = quantiles([2 * one_by_one / both for one_by_one, both in rounds])
    return {
        "step_flops": recipe.training_flops / recipe.train.steps,
        "n_steps": n_steps,
        "two_threads_step_seconds": quantiles([one_by_one / n_steps for one_by_one, _ in rounds]),
        "side_by_side_step_seconds": quantiles([both / n_steps for _, both in rounds]),
        "gain": gain,
        "summary": f"side by side {gain['median']:.2f} times as fast as one by one with two threads",
    }


def parts(quick: bool) -> list[Part]:
    def part(times: int, batch_size: int, precision: Precision) -> Part:
        recipe = sized(times, batch_size, precision, seq_len=32 if quick else None)
        name = f"d{128 * times}/{batch_size}_sequences/{precision}"
        return Part(name, lambda _: side_by_side(recipe, 1 if quick else 5, 0.1 if quick else 2.0), 120)

    if quick:
        return [part(*SHAPES[0], "bf16")]
    return [part(*shape, precision) for shape in SHAPES for precision in DTYPES]


def main(argv: list[str] | None = None) -> int:
    return cpu_command(__doc__, "jobs", parts, total_seconds=900, argv=argv)


if __name__ == "__main__":
    sys.exit(main())
