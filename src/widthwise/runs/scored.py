"""What can be evaluated: the model of a run, and that of a Hugging Face folder."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from widthwise.computing import Precision
from widthwise.config_io import UserError
from widthwise.data.config import open_data
from widthwise.data.mixture import MixedData, OpenedData
from widthwise.data.prepared import PreparedData
from widthwise.data.tokenizer import Tokenizer
from widthwise.evaluation.hf_model import HFModel
from widthwise.evaluation.scorer import Scorer
from widthwise.model.decoder import Decoder
from widthwise.recipe.recipe import Recipe
from widthwise.run_dir import RunDir
from widthwise.runs.data_identity import has_seen_data, identity_of, recorded_identity
from widthwise.runs.hf_folder import is_model_folder, is_own_format, loading, read_own_model, read_with_transformers
from widthwise.runs.scoring import ScoringOptions
from widthwise.runs.trained import load_trained, spent_by

HELD_OUT = "held-out"
"""Name of a run's own held-out text; of a mixture each source has its own, HELD_OUT/NAME."""

OwnTexts = dict[str, tuple[PreparedData, int]]
"""Held-out texts by name, and the targets of each that validations use."""


@dataclass(frozen=True)
class Scored:
    """A model to be evaluated."""

    model: Decoder | HFModel
    tokenizer: Tokenizer
    seq_len: int
    """Tokens per window if the user does not give it."""
    precision: Precision
    """Precision of the matrix products if the user does not give it."""
    step: int | None
    """Step of the checkpoint; None for a Hugging Face folder, which knows none."""
    tokens: int | None
    """Tokens that it was trained on by that step, those of a run that it comes from included; None as `step`."""
    damages: Sequence[str]
    """Newer checkpoints that could not be used, in words."""
    own_texts: Callable[[], OwnTexts]
    """The texts to read if the user names none. Raises UserError where there are none."""

    def precision_for(self, options: ScoringOptions) -> Precision:
        """Return the precision that is asked for, or else its own."""
        return options.precision or self.precision

    def scorer(self, options: ScoringOptions) -> Scorer:
        """Return what scores texts with the model. Raises UserError where it reads fewer tokens than max_length."""
        dtype = torch.bfloat16 if self.precision_for(options) == "bf16" else None
        return Scorer(self.model, self.tokenizer, options.max_length or self.seq_len, options.batch_size, dtype)


def load_scored(path: Path | str, device: torch.device | str | None = None, step: int | None = None) -> Scored:
    """The model of a run directory or of a Hugging Face folder. Raises UserError where it is neither, or damaged.

    A `widthwise` folder is read as a model of ours, any other by transformers, in fp32. step: of the checkpoint of a
    run; its newest good one where not given.
    """
    path = Path(path)
    if RunDir(path).exists or not is_model_folder(path):
        return _of_run(path, device, step)
    if step is not None:
        raise UserError(f"{path}: step: got {step}; a Hugging Face folder holds one model and knows no steps")
    return _of_folder(path, device)


def _of_run(path: Path, device: torch.device | str | None, step: int | None) -> Scored:
    trained = load_trained(path, device, step)
    recipe, damages = trained.recipe, [str(damage) for damage in trained.damages]
    run = RunDir(path)
    return Scored(
        trained.model,
        trained.tokenizer,
        recipe.seq_len,
        recipe.train.settled_precision,
        trained.step,
        spent_by(run, recipe, trained.step).tokens,
        damages,
        partial(_own_texts, run, recipe),
    )


def _of_folder(path: Path, device: torch.device | str | None) -> Scored:
    def own_texts() -> OwnTexts:
        raise UserError(f"{path}: a Hugging Face folder brings no held-out text; name a text with --text or --data")

    if is_own_format(path):
        found = read_own_model(path, device)
        model = found.model
    else:
        found = read_with_transformers(path, device)
        with loading(path):
            model = HFModel(found.model, found.n_positions)
    return Scored(model, found.tokenizer, found.seq_len, "fp32", None, None, (), own_texts)


def _own_texts(run: RunDir, recipe: Recipe) -> OwnTexts:
    """One for each source of a mixture. The targets are whole windows of the recipe's seq_len, whatever this
    evaluation's; of a source that has none, one."""
    data, seq_len = _own_data(run, recipe), recipe.seq_len
    held_out = recipe.held_out(data)
    if not isinstance(data, MixedData):
        return {HELD_OUT: (data, held_out.n_windows * seq_len)}
    n_windows = Counter(held_out.sources)
    return {f"{HELD_OUT}/{name}": (source, max(1, n_windows[name]) * seq_len) for name, source in data.sources.items()}


def _own_data(run: RunDir, recipe: Recipe) -> OpenedData:
    if not has_seen_data(run):
        raise UserError(f"{run.path}: has seen no data yet; name a text with --text or --data")
    data = open_data(recipe.data)
    before, now = recorded_identity(run), identity_of(data)
    if before != now:
        was, is_now = before.compared(now)
        raise UserError(f"{run.path}: was trained on {was}, which is now {is_now}; name a text with --text or --data")
    return data
