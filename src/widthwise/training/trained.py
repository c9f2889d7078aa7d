"""A run's model, to be used rather than trained on."""

from dataclasses import dataclass
from pathlib import Path

import torch

from widthwise.config_io import UserError, parse, parse_yaml
from widthwise.data.tokenizer import Tokenizer
from widthwise.data.tokenizer_spec import restore_tokenizer
from widthwise.model.decoder import Decoder, build
from widthwise.run_dir import RunDir
from widthwise.training import checkpoint
from widthwise.training.config import Recipe


@dataclass(frozen=True)
class Trained:
    """A model as its newest good checkpoint has it."""

    recipe: Recipe
    model: Decoder
    tokenizer: Tokenizer
    step: int
    damages: list[checkpoint.Damage]
    """Newer checkpoints that could not be used."""


def load_trained(path: Path | str, device: torch.device | str | None = None) -> Trained:
    """The model and tokenizer of a run directory. Raises UserError where it is none or has no usable checkpoint."""
    run = RunDir(path)
    recipe = parse(Recipe, parse_yaml(run.config_yaml(), "config.yaml"), f"{run.path}/config.yaml")
    found, damages = checkpoint.latest_valid(run.checkpoints)
    if found is None:
        reasons = "; ".join(map(str, damages)) or "nothing was saved yet"
        raise UserError(f"{run.checkpoints}: no checkpoint to load ({reasons})")
    default = "cuda" if torch.cuda.is_available() else "cpu"
    model = build(recipe.explicit_model, seed=0, device=device or default)
    checkpoint.load_weights(found, model)
    return Trained(recipe, model.eval(), _tokenizer(run), int(found.name.removeprefix("step_")), damages)


def save_tokenizer(run: RunDir, tokenizer: Tokenizer) -> None:
    """Keeps the tokenizer with the run, so that the run can be used where its data is not."""
    tokenizer.save(run.tokenizer_folder)


def _tokenizer(run: RunDir) -> Tokenizer:
    files = sorted(run.tokenizer_folder.glob("*.json"))
    if not files:
        raise UserError(f"{run.tokenizer_folder}: holds no tokenizer")
    return restore_tokenizer(run.environment()["data"]["tokenizer"]["spec"], files[0])
