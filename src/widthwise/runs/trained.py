"""A run at one of its checkpoints: the model to use, and all from which another run begins."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from widthwise.config_io import UserError
from widthwise.data.json_tokenizer import restore_tokenizer
from widthwise.data.tokenizer import Tokenizer
from widthwise.growth.plan import State
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder, build
from widthwise.recipe.optimizer import Optimizer
from widthwise.recipe.recipe import Recipe, saved_recipe
from widthwise.run_dir import RunDir
from widthwise.runs.data_identity import has_seen_data, recorded_tokenizer
from widthwise.training import checkpoint, checkpoint_folder
from widthwise.training.growth_step import state_by_name
from widthwise.training.state import RunState, Spent, inherited


@dataclass(frozen=True)
class Trained:
    """A model as a checkpoint has it."""

    recipe: Recipe
    model: Decoder
    tokenizer: Tokenizer
    step: int
    damages: list[checkpoint_folder.Damage]
    """Newer checkpoints that could not be used, where the newest was asked for."""


def load_trained(path: Path | str, device: torch.device | str | None = None, step: int | None = None) -> Trained:
    """The model and tokenizer of a run directory. step: of the checkpoint; its newest good one where not given.

    Raises UserError where the folder is no run directory or has no such checkpoint that can be used.
    """
    run = RunDir(path)
    recipe = saved_recipe(run)
    found, damages = chosen_checkpoint(run, step)
    default = "cuda" if torch.cuda.is_available() else "cpu"
    step = checkpoint_folder.step_of(found)
    model = build(recipe.model_at(step), seed=0, device=device or default)
    checkpoint.load_weights(found, model)
    return Trained(recipe, model.eval(), tokenizer_of(run), step, damages)


def chosen_checkpoint(run: RunDir, step: int | None) -> tuple[Path, list[checkpoint_folder.Damage]]:
    """The checkpoint of a step, or where none is named the newest good one with newer ones that are damaged.

    Raises UserError where the run keeps none of the step, or a damaged one, and where it has none that is good.
    """
    if step is None:
        return newest_checkpoint(run)
    paths = {checkpoint_folder.step_of(path): path for path in checkpoint_folder.checkpoint_paths(run.checkpoints)}
    if step not in paths:
        kept = ", ".join(map(str, sorted(paths))) or "none"
        raise UserError(f"{run.checkpoints}: step: got {step}; there are checkpoints of: {kept}")
    path = paths[step]
    if (reason := checkpoint_folder.find_damage(path)) is not None:
        raise UserError(f"{run.checkpoints}: {checkpoint_folder.Damage(path, reason)}")
    run.check_recipe_of(checkpoint_folder.seal_of(path), path.name)
    return path, []


def newest_checkpoint(run: RunDir) -> tuple[Path, list[checkpoint_folder.Damage]]:
    """The newest good checkpoint of a run, and newer ones that are damaged. Raises UserError where there is none."""
    found, damages = checkpoint_folder.latest_valid(run.checkpoints)
    if found is None:
        reasons = "; ".join(map(str, damages)) or "nothing was saved yet"
        raise UserError(f"{run.checkpoints}: no checkpoint to load ({reasons})")
    run.check_recipe_of(checkpoint_folder.seal_of(found), found.name)
    return found, damages


def kept_steps(path: Path | str, say: Callable[[str], None] = lambda message: None) -> list[int]:
    """The steps of all good checkpoints of a run, first to last. say: is told of those that are damaged.

    Raises UserError where the folder is no run directory or has no usable checkpoint.
    """
    run = RunDir(path)
    run.config_yaml()
    newest_checkpoint(run)
    reasons = {
        each: checkpoint_folder.find_damage(each) for each in checkpoint_folder.checkpoint_paths(run.checkpoints)
    }
    for each, reason in reasons.items():
        if reason is not None:
            say(f"{run.path}: {checkpoint_folder.Damage(each, reason)}; it is left out")
    return sorted(checkpoint_folder.step_of(each) for each, reason in reasons.items() if reason is None)


def spent_by(run: RunDir, recipe: Recipe, step: int) -> Spent:
    """Return the costs by a step, those of the parent run included."""
    return inherited(run.metrics()).until(recipe, step)


def tokenizer_of(run: RunDir) -> Tokenizer:
    """The tokenizer of a run. Raises UserError without one, as after an import from a folder that has none."""
    files, identity = sorted(run.tokenizer_folder.glob("*.json")), recorded_tokenizer(run)
    if identity is None or not files:
        raise UserError(f"{run.tokenizer_folder}: holds no tokenizer, which text needs")
    return restore_tokenizer(identity.spec, files[0])


def check_tokenizer(run: RunDir, given: Tokenizer) -> None:
    """Raises UserError for the tokenizer of other data if the model of a run does not know its tokens.

    A run that has seen data needs the very same; an imported one the same tokens, merges and end of text.
    """
    identity = recorded_tokenizer(run)
    if identity is None or identity.id == given.id:
        return
    own, is_free = tokenizer_of(run), not has_seen_data(run)
    if is_free and own.vocabulary_id == given.vocabulary_id:
        return
    ends = f", whose texts end in {own.eos!r} and not in {given.eos!r}" if own.eos != given.eos else ""
    other = ", or one with the same tokens, merges and end of text" if is_free else ""
    raise UserError(f"data.tokenizer: got {given.spec}; must be that of the model, {own.spec}{ends}{other}")


@dataclass(frozen=True)
class Source:
    """A run at its newest good checkpoint, or at another one."""

    run: RunDir
    recipe: Recipe
    saved: Path
    """Folder of the checkpoint."""
    damages: tuple[checkpoint_folder.Damage, ...]
    """Newer checkpoints that could not be used, where the newest was asked for."""

    @classmethod
    def of(cls, path: Path | str, step: int | None = None) -> "Source":
        """step: of the checkpoint; its newest good one where not given.

        Raises UserError where it is no run directory or has no such checkpoint that can be used.
        """
        run = RunDir(path)
        recipe = saved_recipe(run)
        found, damages = chosen_checkpoint(run, step)
        run.check_seal(checkpoint_folder.seal_of(found), found.name)
        return cls(run, recipe, found, tuple(damages))

    @property
    def step(self) -> int:
        return checkpoint_folder.step_of(self.saved)

    @property
    def spent(self) -> Spent:
        """Costs of the run by the step of the checkpoint."""
        return spent_by(self.run, self.recipe, self.step)

    @property
    def model(self) -> ModelConfig:
        """The model in the checkpoint."""
        return self.recipe.model_at(self.step)

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer that made the last step of the checkpoint."""
        return self.recipe.optimizer_of(self.recipe.phase_at(self.step))

    def load(self) -> tuple[dict[str, Tensor], State, RunState]:
        """Weights and optimizer state by parameter, and the state of the run. Sets torch's random state."""
        model = build(self.model, seed=0)
        optimizer = self.optimizer.build(model)
        state = checkpoint.load(self.saved, model, optimizer)
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        return weights, state_by_name(model, optimizer), state


def merge(path: Path | str) -> list[Path]:
    """Puts the tensors of every valid checkpoint of a run into one file each; returns those that were in several.

    Every verb reads both forms: this is for other programs. Raises UserError where the folder is no run directory, has
    no usable checkpoint, is in use or cannot be written.
    """
    run = RunDir(path)
    run.config_yaml()
    with run.locked():
        newest_checkpoint(run)
        paths = checkpoint_folder.checkpoint_paths(run.checkpoints)
        valid = [path for path in paths if checkpoint_folder.find_damage(path) is None]
        return [path for path in valid if checkpoint.merge(path)]
