"""A recipe whose runs take a fraction of a second, and runs that fail."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import TINY

from widthwise.experiments import jobs
from widthwise.yaml_io import dump_yaml, merge

RECIPE: dict[str, Any] = {
    **TINY,
    "model": {"vocab_size": 257, "d_model": 16, "n_layers": 2, "attention": {"head_dim": 8}},
    "seq_len": 17,
    "train": {
        "steps": 4,
        "batch_size": 3,
        "precision": "fp32",
        "validation_tokens": 85,
        "checkpoint_every": 1,
        "log_every": 1,
    },
}


def recipe_file(
    folder: Path, sweep: dict[str, Any] | None = None, base: dict[str, Any] = RECIPE, name: str = "tiny", **changes: Any
) -> Path:
    """A recipe in a folder, which need not exist; changes: laid over the base."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.yaml"
    data = merge(base, changes) | ({} if sweep is None else {"sweep": sweep})
    path.write_text(dump_yaml(data))
    return path


@contextmanager
def every_run_raises(error: type[Exception], message: str, *details: Any) -> Iterator[None]:
    """In the block runs raise the error, with their path before the message, instead of being trained."""

    def fail(recipe: Any, path: Path, observer: Any, data_cache: Any) -> None:
        raise error(f"{path}: {message}", *details)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "train_or_resume", fail)
        yield


def hourglass_sizes(budget: float, n_layers: int, n_blocks: int, ratio: float, quantum: int) -> tuple[int, int]:
    """d_model and d_hidden by the hourglass paper's rule: a width for the ratio, then the hidden width that is left.

    budget: parameters of all layers. quantum: what d_model is a multiple of.
    """
    d_model = quantum * round(math.sqrt(budget / (n_layers * (4 + 3 * n_blocks * ratio))) / quantum)
    return d_model, round((budget / n_layers - 4 * d_model**2) / (3 * n_blocks * d_model))
