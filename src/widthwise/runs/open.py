"""Models opened for use, from runs and Hugging Face folders."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from widthwise.computing import Precision
from widthwise.data.config import open_data
from widthwise.data.identity import check_data_of_run, has_seen_data
from widthwise.data.json_tokenizer import JsonTokenizer
from widthwise.data.mixture import MixedData
from widthwise.data.prepared import PreparedData
from widthwise.data.tokenizer import Tokenizer
from widthwise.evaluation.scorer import Scorer
from widthwise.files import read_text
from widthwise.interop.hf_import import CONFIG, TOKENIZER, import_hf, import_source
from widthwise.mistakes import UserError
from widthwise.model.decoder import Decoder, build
from widthwise.recipe.recipe import Recipe
from widthwise.records.run import other_folder
from widthwise.run_dir import RunDir
from widthwise.runs.scoring import EvaluationConfig
from widthwise.runs.trained import RunCheckpoint, check_known, chosen_checkpoint, tokenizer_of, usual_seq_len
from widthwise.training import checkpoint
from widthwise.training.checkpoint_folder import Damage

HELD_OUT = "held-out"
"""Name of a run's held-out text; HELD_OUT/NAME for each source of a mixture."""
NAME_A_TEXT = "name a text with --text or --data"


@dataclass(frozen=True)
class Model:
    """A model in memory, in evaluation mode and fp32."""

    path: Path
    model: Decoder
    tokenizer: Tokenizer
    device: torch.device
    n_positions: int | None
    """Tokens of the longest text that the model supports; None: any."""
    recipe: Recipe | None = None
    """None for a Hugging Face folder, like the following fields."""
    step: int | None = None
    """Step of the checkpoint."""
    tokens: int | None = None
    """Number of training tokens up to that step, including the parent run."""
    damages: Sequence[Damage] = ()
    """Newer damaged checkpoints, if no step was given."""

    @property
    def seq_len(self) -> int:
        """Tokens per window if the user does not give it."""
        if self.recipe is not None:
            return self.recipe.seq_len
        return usual_seq_len(self.n_positions)

    def precision_for(self, options: EvaluationConfig) -> Precision:
        """Return the type of the matrix products."""
        return options.precision or ("fp32" if self.recipe is None else self.recipe.train.settled_precision)

    def scorer(self, options: EvaluationConfig) -> Scorer:
        """Return the model as a scorer of texts. Raises UserError if it reads fewer tokens than max_length."""
        dtype = torch.bfloat16 if self.precision_for(options) == "bf16" else None
        if options.no_bos:
            self.tokenizer.bos_id = None
        return Scorer(self.model, self.tokenizer, options.max_length or self.seq_len, options.batch_size, dtype)

    def own_texts(self) -> dict[str, tuple[PreparedData, int]]:
        """Return the held-out texts of the run's data by name, each with its number of targets in validations.

        There is one for each source of a mixture. The targets are whole windows of the recipe's seq_len, at least one
        for a source. Raises UserError if there is no text, or the data differ from the run's.
        """
        run = RunDir(self.path)
        recipe = self.recipe
        if recipe is None:
            raise UserError(f"{run.path}: a Hugging Face folder has no held-out text; {NAME_A_TEXT}")
        if not has_seen_data(run):
            raise UserError(f"{run.path}: has not been trained yet; {NAME_A_TEXT}")
        data = open_data(recipe.data)
        check_data_of_run(run, data.identity, "its recipe now names", f"; {NAME_A_TEXT}")
        held_out = recipe.held_out(data)
        if not isinstance(data, MixedData):
            return {HELD_OUT: (data, held_out.n_windows * recipe.seq_len)}
        n_windows = Counter(held_out.sources)
        return {
            f"{HELD_OUT}/{name}": (source, max(1, n_windows[name]) * recipe.seq_len)
            for name, source in data.sources.items()
        }


def open_model(path: Path | str, device: torch.device | str | None = None, step: int | None = None) -> Model:
    """Load the model and tokenizer of a run, of a Hugging Face folder, or of `org/name` on the hub.

    step: of the checkpoint of a run; default: the newest undamaged one. Raises UserError for a path without a model,
    for a damaged one, and for a folder that `widthwise import` refuses.
    """
    path, _ = import_source(path)
    device = usual_device(device)
    if not is_run(path, step):
        _check_tokenizer(path)
        imported = import_hf(path)
        tokenizer_path = path / TOKENIZER
        tokenizer = JsonTokenizer(str(tokenizer_path), read_text(tokenizer_path), str(tokenizer_path), imported.eos)
        check_known(tokenizer, imported.config.vocab_size)
        model = build(imported.config, seed=0, device=device)
        model.set_weights(imported.take_weights())
        tokenizer = tokenizer.as_pretrained(imported.token_ids)
        return Model(path, model.eval(), tokenizer, device, imported.n_positions)
    source = RunCheckpoint.of(path, step)
    model = build(source.model, seed=0, device=device)
    checkpoint.load_weights(source.saved, model)
    return Model(
        source.run.path,
        model.eval(),
        tokenizer_of(source.run),
        device,
        None if model.positions is None else model.positions.n_positions,
        source.recipe,
        source.step,
        source.spent.tokens,
        source.damages,
    )


def check_model(path: Path, step: int | None = None) -> None:
    """Raise UserError for a path that holds no model or no tokenizer, before any weights are read."""
    if not is_run(path, step):
        _check_tokenizer(path)
        return
    run = RunDir(path)
    if not run.exists:
        raise UserError(
            f"{path}: is neither a run directory (config.yaml) nor a Hugging Face folder ({CONFIG}){other_folder(path)}"
        )
    chosen_checkpoint(run, step)
    tokenizer_of(run)


def is_run(path: Path, step: int | None) -> bool:
    """Tell a run from a Hugging Face folder. Raises UserError for the step of a folder."""
    if RunDir(path).exists or not (path / CONFIG).is_file():
        return True
    if step is not None:
        raise UserError(f"{path}: step: got {step}; a Hugging Face folder holds one model and has no steps")
    return False


def usual_device(device: torch.device | str | None) -> torch.device:
    """Return the device; if omitted, cuda if there is one."""
    return torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))


def _check_tokenizer(path: Path) -> None:
    """Raise UserError for a Hugging Face folder without a tokenizer."""
    if not (path / TOKENIZER).is_file():
        raise UserError(f"{path}: has no {TOKENIZER}, which is needed for text")
