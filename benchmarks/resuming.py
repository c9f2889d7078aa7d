"""Runs begun on some processes and resumed on others, against those that were never stopped.

OMP_NUM_THREADS=1 python benchmarks/resuming.py [--out benchmarks/results/resuming_cpu.json]
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from compared_runs import loss_difference, recorded_difference, tensor_difference
from harness import RESULTS, environment
from train_many import Order, order, train_on

from widthwise.files import write_atomic
from widthwise.recipe.recipe import Recipe, parse_recipe
from widthwise.yaml_io import merge


class Layout(NamedTuple):
    """How processes share a run."""

    n_processes: int
    shards: int


LAYOUTS = {"1": Layout(1, 1), "2": Layout(2, 2), "4": Layout(4, 4), "2x2": Layout(4, 2)}
"""Name -> layout; 2x2: two copies of the model, each shared by two."""
CHANGES = (
    ("1", "1"),
    ("2", "2"),
    ("2", "1"),
    ("1", "2"),
    ("1", "4"),
    ("2", "4"),
    ("4", "2"),
    ("2", "2x2"),
)
"""Begun on, resumed on."""
STOP_AT = 5
X: dict[str, Any] = {
    "model": {
        "vocab_size": 257,
        "d_model": 16,
        "n_layers": 3,
        "attention": {"head_dim": 8},
        "shape": {"kind": "explicit", "widths": [24, 8, 24]},
    },
    "seq_len": 17,
    "data": {"corpus": "synthetic", "tokenizer": "bytes"},
    "optimizer": {"kind": "adamw", "lr": 0.01},
    "schedule": {"kind": "cosine", "warmup_steps": 2},
    "train": {"steps": 12, "batch_size": 4, "precision": "fp32", "seed": 3, "log_every": 1, "validation_tokens": 90},
}
WIDER = {"d_model": 24, "n_layers": 5, "shape": {"kind": "explicit", "widths": [32, 24, 24, 24, 32]}}
GROWING = {"growth": [{"at_step": 3, "model": WIDER}, {"at_step": 8, "model": {"ffn": {"kind": "swiglu", "ratio": 6}}}]}
RECIPES: dict[str, dict[str, Any]] = {"x": X, "x, grown before and after the stop": merge(X, GROWING)}


class Row(NamedTuple):
    """A run of the table."""

    recipe: str
    dtype: str
    begun_on: str
    resumed_on: str | None
    """None: the run that is never stopped."""

    @property
    def name(self) -> str:
        return f"{self.recipe}, {self.dtype}, {self.begun_on} to {self.resumed_on}"

    def uninterrupted(self) -> "Row":
        return self._replace(resumed_on=None)

    def turns(self, folder: Path) -> list[tuple[int, Order]]:
        """What is to be done, one after the other: on how many processes, and the order to them."""
        stops = [(self.begun_on, None if self.resumed_on is None else STOP_AT)]
        stops += [] if self.resumed_on is None else [(self.resumed_on, None)]
        return [
            (LAYOUTS[on].n_processes, order(recipe(self.recipe, on), folder / self.name, self.dtype, stop))
            for on, stop in stops
        ]


def recipe(name: str, layout: str) -> Recipe:
    return parse_recipe(merge(RECIPES[name], {"train": {"shards": LAYOUTS[layout].shards}}), name)


def rows_of(recipes: Iterable[str], dtypes: Iterable[str], changes: Iterable[tuple[str, str]] = CHANGES) -> list[Row]:
    return [Row(name, dtype, *change) for name, dtype, change in product(recipes, dtypes, list(changes))]


def launches(rows: Iterable[Row], folder: Path, sequence: Iterable[int]) -> Iterator[tuple[int, list[Order]]]:
    """What each launch of a sequence does, so that all rows and what they are compared with are trained.

    sequence: the numbers of processes of the launches.
    """
    runs = dict.fromkeys([*(row.uninterrupted() for row in rows), *rows])
    waiting = [row.turns(folder) for row in runs]
    for n_processes in sequence:
        ready = []
        for turns in waiting:
            while turns and turns[0][0] == n_processes:
                ready.append(turns.pop(0)[1])
        yield n_processes, ready
    assert not any(waiting), "the sequence is too short"


def differences(row: Row, folder: Path) -> dict[str, float]:
    """The largest differences of a row from the run that was never stopped."""
    ours, theirs = folder / row.name, folder / row.uninterrupted().name
    return {
        "losses": loss_difference(ours, theirs),
        "records": recorded_difference(ours, theirs)[0],
        "weights": tensor_difference(ours, theirs, "model")[0],
        "optimizer": tensor_difference(ours, theirs, "optimizer")[0],
    }


def bound(row: Row) -> float:
    """What its losses may differ by: nothing where processes and shards stay the same, rounding elsewhere."""
    if row.begun_on == row.resumed_on:
        return 0.0
    return {"float64": 1e-11, "float32": 1e-6}[row.dtype]


def measured(rows: list[Row], folder: Path) -> list[dict[str, Any]]:
    """Trains what the rows need, all differences of all rows."""
    for n_processes, orders in launches(rows, folder, (1, 2, 4, 2, 1)):
        train_on(n_processes, orders, folder)
    return [{**row._asdict(), **differences(row, folder), "bound": bound(row)} for row in rows]


def largest(report: dict[str, Any], dtype: str) -> float:
    """Return the largest difference of a loss, in nats, over all rows of a dtype."""
    return max(row["losses"] for row in report["rows"] if row["dtype"] == dtype)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "resuming_cpu.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measured(rows_of(RECIPES, ("float32", "float64")), Path(folder))
    report = {"environment": environment(), "rows": rows}
    write_atomic(arguments.out, json.dumps(report, indent=1) + "\n")
    return int(any(row["losses"] > row["bound"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
