"""A run that takes a fraction of a second, and what two runs of it must have in common."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from widthwise.config_io import parse
from widthwise.recipe.recipe import Recipe
from widthwise.recipe.train_section import TrainConfig
from widthwise.run_dir import RunDir
from widthwise.runs.train import resume
from widthwise.training.checkpoint_folder import checkpoint_paths
from widthwise.training.metrics import MEASURED_KEYS
from widthwise.training.observer import SilentObserver
from widthwise.yaml_io import apply_overrides, parse_yaml


def step_config(micro_batch_size: int = 6, **changes: Any) -> TrainConfig:
    """The train section of a recipe as far as one step of a given batch needs it."""
    return TrainConfig(**{"steps": 1, "batch_size": micro_batch_size, "precision": "fp32", **changes})


TINY: dict[str, Any] = {
    "seq_len": 24,
    "data": {"corpus": "synthetic", "tokenizer": "bytes"},
    "optimizer": {"kind": "adamw", "lr": 0.01},
    "schedule": {"kind": "constant", "warmup_steps": 1},
}
"""What the recipes of tests that train have in common, but for the model and how long it trains."""


SAMPLES = "train.sample={prompts: ['<b>x', ''], n_tokens: 7, seed: 5}"


TINY_RECIPE = """
model:
  {vocab_size: 257, d_model: 16, n_layers: 3, attention: {head_dim: 8}, shape: {kind: explicit, widths: [24, 8, 24]}}
seq_len: 17
data: {corpus: synthetic, tokenizer: bytes}
optimizer: {kind: adamw, lr: 0.01}
schedule: {kind: cosine, warmup_steps: 2}
train:
  {steps: 9, batch_size: 4, micro_batch_size: 2, precision: fp32, seed: 3, log_every: 4, validate_every: 5,
   validation_tokens: 90, checkpoint_every: 1, keep_last: 100, loss_window_steps: 5}
"""


def tiny_recipe(*overrides: str) -> Recipe:
    """9 steps of an x-shaped model; log, validation and checkpoint intervals that share no factor."""
    data = parse_yaml(TINY_RECIPE, "tiny_recipe")
    apply_overrides(data, overrides)
    return parse(Recipe, data)


def without_measurements(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in MEASURED_KEYS}


def outcome(path: Path) -> dict[str, Any]:
    """All that a finished run must reproduce bit by bit."""
    run = RunDir(path)
    files = sorted(checkpoint_paths(run.checkpoints)[0].glob("*.safetensors"))
    # Hashes, because pytest would compare unequal contents for hours.
    sha256 = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    return {
        "metrics": [without_measurements(record) for record in run.metrics()],
        "result": {**without_measurements(run.result().to_data()), "name": None, "notes": None},
        "model": {name: digest for name, digest in sha256.items() if name.startswith("model")},
        "optimizer": {name: digest for name, digest in sha256.items() if name.startswith("optimizer")},
    }


def unfinished_copy(source: Path, target: Path, step: int) -> Path:
    """A finished run as a kill after the checkpoint of `step` could have left it: records beyond it, no result."""
    shutil.copytree(source, target)
    (target / "result.json").unlink()
    for path in checkpoint_paths(target / "checkpoints"):
        if int(path.name.removeprefix("step_")) > step:
            shutil.rmtree(path)
    return target


def resumed_alike(whole: Path, folder: Path, *steps: int) -> None:
    """Copies of a finished run, as kills after these steps could have left it, end as it did when they are resumed."""
    for step in steps:
        run = unfinished_copy(whole, folder / f"from_{step}", step)
        resume(run)
        assert outcome(run) == outcome(whole), step


def records(run: Path, event: str) -> list[dict[str, Any]]:
    """Of its metrics, those of one kind."""
    return [record for record in RunDir(run).metrics() if record["event"] == event]


def weights_at(run: Path, step: int) -> dict[str, Tensor]:
    """Of the checkpoint of a step."""
    return load_file(run / f"checkpoints/step_{step:08d}/model.safetensors")


class Listener(SilentObserver):
    """An observer that remembers messages, and calls `at_step(step)` after every step."""

    def __init__(self, at_step=lambda step: None):
        self.messages: list[str] = []
        self._at_step = at_step

    def step_done(self, step):
        self._at_step(step)

    def message(self, text):
        self.messages.append(text)
