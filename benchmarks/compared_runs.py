"""Two runs of one recipe, number by number."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from widthwise.config_io import differences
from widthwise.files import read_json
from widthwise.run_dir import RunDir
from widthwise.training.checkpoint_folder import MANIFEST, SavedTensors, checkpoint_paths
from widthwise.training.metrics import MEASURED_KEYS

NAMED = ("name", "notes")
"""Entries of a result that name the folder and the processes."""


def records(run: Path) -> list[dict[str, Any]]:
    """Its metrics, without what measures the machine."""
    return [_without(MEASURED_KEYS, record) for record in RunDir(run).metrics()]


def recorded(run: Path) -> dict[str, Any]:
    """Whatever a finished run has recorded, in its metrics and its result."""
    result = RunDir(run).result()
    assert result is not None
    return {"metrics": records(run), "result": _without((*MEASURED_KEYS, *NAMED), result.to_data())}


def _without(keys: Sequence[str], data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in keys}


def tensors(run: Path, stem: str) -> dict[str, Tensor]:
    """Whole tensors of the newest checkpoint, of one file or of many. stem: model or optimizer."""
    newest = checkpoint_paths(RunDir(run).checkpoints)[0]
    with SavedTensors.opened(newest, stem, read_json(newest / MANIFEST).get("n_shards", 1)) as saved:
        return {name: saved.whole(name) for name in sorted(saved.names)}


def losses(run: Path) -> list[float]:
    """The loss of every training record."""
    return [record["loss"] for record in records(run) if record["event"] == "train"]


def loss_difference(ours: Path, theirs: Path) -> float:
    """The largest of any step."""
    pairs = zip(losses(ours), losses(theirs), strict=True)
    return max(abs(a - b) for a, b in pairs)


def recorded_difference(ours: Path, theirs: Path) -> tuple[float, str]:
    """The largest difference of any recorded number, over its size where that is above 1, and where it is."""
    apart = (
        (abs(a - b) / max(1.0, abs(b)) if isinstance(a, float) and isinstance(b, (int, float)) else math.inf, path)
        for path, a, b in differences(recorded(ours), recorded(theirs))
    )
    return max(apart, default=(0.0, ""))


def tensor_difference(ours: Path, theirs: Path, stem: str) -> tuple[float, str]:
    """The largest difference of any entry of the newest checkpoints, over the largest of its tensor, and its name."""
    found, expected = tensors(ours, stem), tensors(theirs, stem)
    assert found.keys() == expected.keys()
    assert all(found[name].dtype == expected[name].dtype for name in found)
    return max((_distance(found[name], expected[name]), name) for name in found)


def _distance(found: Tensor, expected: Tensor) -> float:
    if torch.equal(found, expected):
        return 0.0
    scale = max(float(expected.abs().max()), 1e-30)
    return float((found.double() - expected.double()).abs().max()) / scale
