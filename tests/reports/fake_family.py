"""A family on disk as an older version wrote it: without seeds, controls and sizes."""

import json
from pathlib import Path

from tiny_runs import tiny_recipe

from widthwise.runs.train import train


def write_family(folder: Path, run: str = "wide") -> Path:
    """A folder with a family.json and the one run that it names, unless `run` is elsewhere."""
    train(tiny_recipe("train.steps=4", "train.validate_every=2", "schedule={kind: constant}"), folder / "wide")
    member = {"name": "wide", "run": run, "params": 10, "start": 1, "tokens": 136}
    member |= {"flops_own": 3.0, "flops": 5.0, "flops_alone": 6.0, "val_loss": 2.5, "val_bits_per_byte": 1.5}
    family = {"source": "runs/small", "shared_flops": 2.0, "family_flops": 5.0, "flops_alone": 6.0, "members": [member]}
    (folder / "family.json").write_text(json.dumps(family))
    return folder
