"""Trained models with their tokenizers, from a checkpoint of a run or a Hugging Face folder."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from widthwise.computing import Precision
from widthwise.data.identity import has_seen_data, recorded_import, recorded_tokenizer
from widthwise.data.json_tokenizer import JsonTokenizer, restore_tokenizer
from widthwise.data.tokenizer import Tokenizer
from widthwise.evaluation.scorer import Scorer
from widthwise.files import read_text
from widthwise.growth.plan import State
from widthwise.interop.hf_import import CONFIG, TOKENIZER, import_hf, import_source
from widthwise.mistakes import UserError
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder, build
from widthwise.recipe.optimizer import Optimizer
from widthwise.recipe.recipe import Recipe, saved_recipe
from widthwise.records.run import folder_hint
from widthwise.run_dir import RunDir
from widthwise.runs.scoring import EvaluationConfig
from widthwise.training import checkpoint, checkpoint_folder
from widthwise.training.checkpoint_folder import Damage
from widthwise.training.growth_step import state_by_name
from widthwise.training.state import RunState, Spent, inherited

LONGEST_WINDOW = 1024
"""Upper limit of the default tokens per window."""


def usual_seq_len(n_positions: int | None) -> int:
    """Return the default tokens per window. n_positions: tokens of the model's longest text; None: no limit."""
    return min(LONGEST_WINDOW, n_positions or LONGEST_WINDOW)


def check_finite(path: Path | str, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Raise UserError for a weight with NaN or infinity."""
    for name, weight in weights:
        if not weight.isfinite().all():
            message = f"{name} holds NaN or infinity; choose another checkpoint with --step, or another model"
            raise UserError(f"{path}: {message}")


def chosen_checkpoint(run: RunDir, step: int | None = None) -> tuple[Path, list[Damage]]:
    """Return the checkpoint of a step, or by default the newest undamaged one, with the damage of newer ones.

    Raises UserError if that checkpoint is missing, damaged or of another recipe, and if none is undamaged.
    """
    if step is None:
        path, damages = checkpoint_folder.latest_valid(run.checkpoints)
        if path is None:
            reasons = "; ".join(map(str, damages)) or "nothing was saved yet"
            raise UserError(f"{run.checkpoints}: no checkpoint to load ({reasons})")
    else:
        damages = []
        paths = {checkpoint_folder.step_of(path): path for path in checkpoint_folder.checkpoint_paths(run.checkpoints)}
        if step not in paths:
            steps = ", ".join(map(str, sorted(paths))) or "none"
            raise UserError(f"{run.checkpoints}: step: got {step}; there are checkpoints of: {steps}")
        path = paths[step]
        reason = checkpoint_folder.find_damage(path)
        if reason is not None:
            raise UserError(f"{run.checkpoints}: {Damage(path, reason)}")
    run.check_recipe_of(checkpoint_folder.manifest_of(path).seal, path.name)
    return path, damages


def checkpoint_steps(path: Path | str, say: Callable[[str], None] = lambda message: None) -> list[int]:
    """Return the steps of all undamaged checkpoints of a run, ascending. say: reports each damaged one.

    Raises UserError if the folder is not a run directory or has no undamaged checkpoint.
    """
    run = RunDir(path)
    run.config_yaml()  # raises UserError if it is not a run directory
    chosen_checkpoint(run)  # raises UserError without an undamaged checkpoint
    steps = []
    for saved in checkpoint_folder.checkpoint_paths(run.checkpoints):
        reason = checkpoint_folder.find_damage(saved)
        if reason is None:
            steps.append(checkpoint_folder.step_of(saved))
        else:
            say(f"{run.path}: {Damage(saved, reason)}; it is left out")
    return sorted(steps)


def tokenizer_of(run: RunDir) -> Tokenizer:
    """Return the tokenizer of a run. Raises UserError if the run has none; an imported folder may lack it."""
    files = sorted(run.tokenizer_folder.glob("*.json"))
    identity = recorded_tokenizer(run)
    if identity is None or not files:
        raise UserError(f"{run.tokenizer_folder}: holds no tokenizer, which text needs")
    tokenizer = restore_tokenizer(identity.spec, files[0])
    origin = recorded_import(run)
    return tokenizer if origin is None else tokenizer.as_pretrained(origin.token_ids)  # sets bos_id


def check_tokenizer(run: RunDir, data_tokenizer: Tokenizer) -> None:
    """Raise UserError if a run cannot train on data with this tokenizer.

    A trained run needs an identical tokenizer; an imported model needs the same tokens, merges and end of text.
    """
    identity = recorded_tokenizer(run)
    if identity is not None and identity.id != data_tokenizer.id:
        check_same_tokens(tokenizer_of(run), data_tokenizer, allow_same_tokens=not has_seen_data(run))


def check_same_tokens(tokenizer: Tokenizer, data_tokenizer: Tokenizer, allow_same_tokens: bool) -> None:
    """Raise UserError unless the tokenizer of data is identical to the model's.

    allow_same_tokens: also accept another tokenizer with the same tokens, merges and end of text.
    """
    if tokenizer.id == data_tokenizer.id:
        return
    if allow_same_tokens and tokenizer.vocabulary_id == data_tokenizer.vocabulary_id:
        return
    allowed = tokenizer.spec
    if tokenizer.eos != data_tokenizer.eos:
        allowed += f", whose texts end in {tokenizer.eos!r} and not in {data_tokenizer.eos!r}"
    if allow_same_tokens:
        allowed += ", or one with the same tokens, merges and end of text"
    raise UserError(f"data.tokenizer: got {data_tokenizer.spec}; must be the model's, {allowed}")


def check_vocabulary(vocab_size: int, tokenizer: Tokenizer) -> None:
    """Limit `vocab_size` of the tokenizer of a run's data to the model's. Raises UserError if it has more tokens."""
    if tokenizer.n_used > vocab_size:
        raise UserError(
            f"model.vocab_size: got {vocab_size}; must be at least {tokenizer.n_used}, "
            f"the number of tokens of tokenizer {tokenizer.spec}; or name data of other tokens, as data.path=FOLDER"
        )
    tokenizer.vocab_size = min(tokenizer.vocab_size, vocab_size)  # for the check of all token ids


def check_fits_model(tokenizer: Tokenizer, vocab_size: int) -> None:
    """Raise UserError if the tokenizer of a model has more tokens than the model."""
    if tokenizer.n_used > vocab_size:
        raise UserError(f"{tokenizer.spec}: has {tokenizer.n_used} tokens; the model has {vocab_size}")


@dataclass(frozen=True)
class RunCheckpoint:
    """A run at one of its checkpoints."""

    run: RunDir
    recipe: Recipe
    saved: Path
    """Folder of the checkpoint."""
    damages: Sequence[Damage]
    """Newer damaged checkpoints, if no step was given."""
    step: int
    model: ModelConfig
    """The model in the checkpoint."""

    @classmethod
    def of(cls, path: Path | str, step: int | None = None) -> "RunCheckpoint":
        """Return a run at a checkpoint. step: of the checkpoint; default: the newest undamaged one.

        Raises UserError if the folder is not a run directory or has no such undamaged checkpoint.
        """
        run = RunDir(path)
        recipe = saved_recipe(run)
        saved, damages = chosen_checkpoint(run, step)
        saved_step = checkpoint_folder.step_of(saved)
        return cls(run, recipe, saved, damages, saved_step, recipe.model_at(saved_step))

    @property
    def spent(self) -> Spent:
        """Costs up to the step of the checkpoint, including the parent run."""
        return inherited(self.run.metrics()).until(self.recipe, self.step)

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer of the last step before the checkpoint."""
        return self.recipe.optimizer_of(self.recipe.phase_at(self.step))

    def load(self) -> tuple[dict[str, Tensor], State, RunState]:
        """Return weights and optimizer state by parameter, and the state of the run. Restores torch's random state."""
        model = build(self.model, seed=0)
        optimizer = self.optimizer.build(model)
        state = checkpoint.load(self.saved, model, optimizer)
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        return weights, dict(state_by_name(model, optimizer)), state


@dataclass(frozen=True)
class Model:
    """A model in memory, in evaluation mode and fp32."""

    path: Path
    model: Decoder
    tokenizer: Tokenizer
    device: torch.device
    n_positions: int | None
    """Tokens of the longest text that the model supports; None: any."""
    seq_len: int
    """Tokens per window if the user does not give it."""
    recipe: Recipe | None = None
    """None for a Hugging Face folder, like `step` and `tokens`."""
    step: int | None = None
    """Step of the checkpoint."""
    tokens: int | None = None
    """Number of training tokens up to that step, including the parent run."""
    damages: Sequence[Damage] = ()
    """Newer damaged checkpoints, if no step was given."""

    def precision_for(self, options: EvaluationConfig) -> Precision:
        """Return the type of the matrix products."""
        return options.precision or ("fp32" if self.recipe is None else self.recipe.train.settled_precision)

    def scorer(self, options: EvaluationConfig) -> Scorer:
        """Return a scorer of texts by this model. Raises UserError if the model reads fewer tokens than max_length.

        With `no_bos`, the tokenizer of this model puts no token before a text from then on.
        """
        dtype = torch.bfloat16 if self.precision_for(options) == "bf16" else None
        if options.no_bos:
            self.tokenizer.bos_id = None
        return Scorer(self.model, self.tokenizer, options.max_length or self.seq_len, options.batch_size, dtype)


def open_model(path: Path | str, device: torch.device | str | None = None, step: int | None = None) -> Model:
    """Load the model and tokenizer of a run, of a Hugging Face folder, or of `org/name` on the hub.

    step: of the checkpoint of a run; default: the newest undamaged one. Raises UserError for a path without a model,
    for a damaged model, and for a folder that `widthwise import` refuses.
    """
    path, _ = import_source(path)  # fetches from the hub
    device = usual_device(device)
    if not is_run(path, step):
        _check_has_tokenizer(path)
        imported = import_hf(path)
        file = path / TOKENIZER
        tokenizer = JsonTokenizer(spec=str(file), definition=read_text(file), where=str(file), eos=imported.eos)
        check_fits_model(tokenizer, imported.config.vocab_size)
        model = build(imported.config, seed=0, device=device)
        model.set_weights(imported.take_weights())
        tokenizer = tokenizer.as_pretrained(imported.token_ids)
        seq_len = usual_seq_len(imported.n_positions)
        return Model(path, model.eval(), tokenizer, device, imported.n_positions, seq_len)
    source = RunCheckpoint.of(path, step)
    model = build(source.model, seed=0, device=device)
    checkpoint.load_weights(source.saved, model)
    return Model(
        source.run.path,
        model.eval(),
        tokenizer_of(source.run),
        device,
        n_positions=None if source.model.positions is None else source.model.positions.n_positions,
        seq_len=source.recipe.seq_len,
        recipe=source.recipe,
        step=source.step,
        tokens=source.spent.tokens,
        damages=source.damages,
    )


def check_model(path: Path, step: int | None = None) -> None:
    """Raise UserError for a path that holds no model or no tokenizer, before any weights are read."""
    if not is_run(path, step):
        _check_has_tokenizer(path)
        return
    run = RunDir(path)
    if not run.exists:
        raise UserError(
            f"{path}: is neither a run directory (config.yaml) nor a Hugging Face folder ({CONFIG}){folder_hint(path)}"
        )
    chosen_checkpoint(run, step)
    tokenizer_of(run)


def is_run(path: Path, step: int | None) -> bool:
    """Return False only for a Hugging Face folder. Raises UserError for a step of such a folder."""
    if RunDir(path).exists or not (path / CONFIG).is_file():
        return True
    if step is not None:
        raise UserError(f"{path}: step: got {step}; a Hugging Face folder holds one model and has no steps")
    return False


def usual_device(device: torch.device | str | None) -> torch.device:
    """Return the device; default: cuda, if there is one."""
    return torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))


def _check_has_tokenizer(path: Path) -> None:
    """Raise UserError for a Hugging Face folder without a tokenizer."""
    if not (path / TOKENIZER).is_file():
        raise UserError(f"{path}: has no {TOKENIZER}, which is needed for text")
