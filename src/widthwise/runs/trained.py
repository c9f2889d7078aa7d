"""A run at one of its checkpoints: its tokenizer, and all from which another run begins."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from widthwise.config_io import UserError
from widthwise.data.identity import IMPORTED, has_seen_data, recorded_tokenizer
from widthwise.data.json_tokenizer import restore_tokenizer
from widthwise.data.tokenizer import Tokenizer
from widthwise.growth.plan import State
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import build
from widthwise.recipe.optimizer import Optimizer
from widthwise.recipe.recipe import Recipe, saved_recipe
from widthwise.run_dir import RunDir
from widthwise.training import checkpoint, checkpoint_folder
from widthwise.training.growth_step import state_by_name
from widthwise.training.state import RunState, Spent, inherited

LONGEST_WINDOW = 1024
"""Most tokens per window, if no recipe gives their number."""


def usual_seq_len(n_positions: int | None) -> int:
    """Return the tokens per window where no recipe gives them. n_positions: the model's longest text; None: any."""
    return min(LONGEST_WINDOW, n_positions or LONGEST_WINDOW)


def check_finite(path: Path | str, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Raises UserError for a weight that holds NaN or infinity, of which nothing exact can be made."""
    if (name := next((name for name, weight in weights if not weight.isfinite().all()), None)) is not None:
        raise UserError(
            f"{path}: {name} holds NaN or infinity; choose another checkpoint with --step, or another model"
        )


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
    run.check_recipe_of(checkpoint_folder.manifest_of(path).seal, path.name)
    return path, []


def newest_checkpoint(run: RunDir) -> tuple[Path, list[checkpoint_folder.Damage]]:
    """The newest good checkpoint of a run, and newer ones that are damaged. Raises UserError where there is none."""
    found, damages = checkpoint_folder.latest_valid(run.checkpoints)
    if found is None:
        reasons = "; ".join(map(str, damages)) or "nothing was saved yet"
        raise UserError(f"{run.checkpoints}: no checkpoint to load ({reasons})")
    run.check_recipe_of(checkpoint_folder.manifest_of(found).seal, found.name)
    return found, damages


def kept_steps(path: Path | str, say: Callable[[str], None] = lambda message: None) -> list[int]:
    """The steps of all good checkpoints of a run, first to last. say: takes a message on each damaged one.

    Raises UserError where the folder is no run directory or has no usable checkpoint.
    """
    run = RunDir(path)
    run.config_yaml()
    newest_checkpoint(run)
    steps = []
    for each in checkpoint_folder.checkpoint_paths(run.checkpoints):
        if (reason := checkpoint_folder.find_damage(each)) is None:
            steps.append(checkpoint_folder.step_of(each))
        else:
            say(f"{run.path}: {checkpoint_folder.Damage(each, reason)}; it is left out")
    return sorted(steps)


def tokenizer_of(run: RunDir) -> Tokenizer:
    """The tokenizer of a run. Raises UserError without one, as after an import from a folder that has none."""
    files, identity = sorted(run.tokenizer_folder.glob("*.json")), recorded_tokenizer(run)
    if identity is None or not files:
        raise UserError(f"{run.tokenizer_folder}: holds no tokenizer, which text needs")
    tokenizer, origin = restore_tokenizer(identity.spec, files[0]), run.environment().get(IMPORTED)
    return tokenizer if origin is None else tokenizer.as_pretrained(origin["token_ids"])


def check_tokenizer(run: RunDir, given: Tokenizer) -> None:
    """Raises UserError for the tokenizer of other data if the model of a run does not know its tokens.

    A run that has seen data needs the very same; an imported one the same tokens, merges and end of text.
    """
    identity = recorded_tokenizer(run)
    if identity is not None and identity.id != given.id:
        check_tokens(tokenizer_of(run), given, is_free=not has_seen_data(run))


def check_tokens(own: Tokenizer, given: Tokenizer, is_free: bool = True) -> None:
    """Raises UserError for the tokenizer of other data than a model's own, unless it is free to take one that has the
    same tokens, merges and end of text."""
    if is_free and own.vocabulary_id == given.vocabulary_id:
        return
    ends = f", whose texts end in {own.eos!r} and not in {given.eos!r}" if own.eos != given.eos else ""
    other = ", or one with the same tokens, merges and end of text" if is_free else ""
    raise UserError(f"data.tokenizer: got {given.spec}; must be that of the model, {own.spec}{ends}{other}")


def check_vocabulary(vocab_size: int, tokenizer: Tokenizer) -> None:
    """Raises UserError for the tokenizer of a run's data with more tokens than its model knows."""
    if tokenizer.n_used > vocab_size:
        raise UserError(
            f"model.vocab_size: got {vocab_size}; must be at least {tokenizer.n_used}, "
            f"the number of tokens of tokenizer {tokenizer.spec}; or name data of other tokens, as data.path=FOLDER"
        )
    tokenizer.vocab_size = min(tokenizer.vocab_size, vocab_size)  # adopted data that hold the others are refused


def check_known(tokenizer: Tokenizer, vocab_size: int) -> None:
    """Raises UserError for the tokenizer of a model with tokens that the model does not know."""
    if tokenizer.n_used > vocab_size:
        raise UserError(f"{tokenizer.spec}: has {tokenizer.n_used} tokens; the model knows {vocab_size}")


@dataclass(frozen=True)
class RunCheckpoint:
    """A run at its newest good checkpoint, or at another one."""

    run: RunDir
    recipe: Recipe
    saved: Path
    """Folder of the checkpoint."""
    damages: Sequence[checkpoint_folder.Damage]
    """Newer checkpoints that could not be used, where no step was given."""

    @classmethod
    def of(cls, path: Path | str, step: int | None = None) -> "RunCheckpoint":
        """step: of the checkpoint; its newest good one where not given.

        Raises UserError where it is no run directory or has no such checkpoint that can be used.
        """
        run = RunDir(path)
        return cls(run, saved_recipe(run), *chosen_checkpoint(run, step))

    @property
    def step(self) -> int:
        return checkpoint_folder.step_of(self.saved)

    @property
    def spent(self) -> Spent:
        """Costs by the step of the checkpoint, including the parent run's."""
        return inherited(self.run.metrics()).until(self.recipe, self.step)

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
        return weights, dict(state_by_name(model, optimizer)), state
