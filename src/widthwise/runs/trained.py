"""The model of a run, for use without further training."""

from dataclasses import dataclass
from pathlib import Path

import torch

from widthwise.config_io import UserError
from widthwise.data.tokenizer import Tokenizer
from widthwise.data.tokenizer_spec import restore_tokenizer
from widthwise.model.decoder import Decoder, build
from widthwise.recipe.recipe import Recipe, saved_recipe
from widthwise.run_dir import RunDir
from widthwise.runs.data_identity import recorded_tokenizer
from widthwise.training import checkpoint, checkpoint_folder


@dataclass(frozen=True)
class Trained:
    """A model as its newest good checkpoint has it."""

    recipe: Recipe
    model: Decoder
    tokenizer: Tokenizer
    step: int
    damages: list[checkpoint_folder.Damage]
    """Newer checkpoints that could not be used."""


def load_trained(path: Path | str, device: torch.device | str | None = None) -> Trained:
    """The model and tokenizer of a run directory. Raises UserError where it is none or has no usable checkpoint."""
    run = RunDir(path)
    recipe = saved_recipe(run)
    found, damages = newest_checkpoint(run)
    default = "cuda" if torch.cuda.is_available() else "cpu"
    step = checkpoint_folder.step_of(found)
    model = build(recipe.model_at(step), seed=0, device=device or default)
    checkpoint.load_weights(found, model)
    return Trained(recipe, model.eval(), tokenizer_of(run), step, damages)


def newest_checkpoint(run: RunDir) -> tuple[Path, list[checkpoint_folder.Damage]]:
    """The newest good checkpoint of a run, and newer ones that are damaged. Raises UserError where there is none."""
    found, damages = checkpoint_folder.latest_valid(run.checkpoints)
    if found is None:
        reasons = "; ".join(map(str, damages)) or "nothing was saved yet"
        raise UserError(f"{run.checkpoints}: no checkpoint to load ({reasons})")
    run.check_recipe_of(checkpoint_folder.seal_of(found), found.name)
    return found, damages


def tokenizer_of(run: RunDir) -> Tokenizer:
    """The tokenizer of a run. Raises UserError without one, as after an import from a folder that has none."""
    files, identity = sorted(run.tokenizer_folder.glob("*.json")), recorded_tokenizer(run)
    if identity is None or not files:
        raise UserError(f"{run.tokenizer_folder}: holds no tokenizer, which text needs")
    return restore_tokenizer(identity.spec, files[0])
