"""A sweep of runs that take a fraction of a second."""

from pathlib import Path
from typing import Any

import yaml

RECIPE: dict[str, Any] = {
    "model": {"vocab_size": 257, "d_model": 16, "n_layers": 2, "attention": {"head_dim": 8}},
    "seq_len": 17,
    "data": {"corpus": "synthetic", "tokenizer": "bytes"},
    "optimizer": {"kind": "adamw", "lr": 0.01},
    "schedule": {"kind": "constant", "warmup_steps": 1},
    "train": {
        "steps": 4,
        "batch_size": 3,
        "precision": "fp32",
        "validation_tokens": 85,
        "checkpoint_every": 1,
        "log_every": 1,
    },
}
LEARNING_RATES: dict[str, Any] = {"baseline": {}, "over": {"optimizer.lr": [0.002, 0.03]}, "seeds": [4, 7]}


def recipe_file(folder: Path, sweep: dict[str, Any] | None = None, **changes: Any) -> Path:
    """tiny.yaml in a folder; changes: of top-level keys."""
    path = folder / "tiny.yaml"
    data = {**RECIPE, **changes} | ({} if sweep is None else {"sweep": sweep})
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    return path
