"""Models opened for use, from runs and Hugging Face folders, in the `widthwise` format or a format of transformers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from widthwise.computing import Precision
from widthwise.config_io import refusing, require
from widthwise.data.config import open_data
from widthwise.data.identity import check_data_of_run, has_seen_data
from widthwise.data.json_tokenizer import JsonTokenizer, token_named
from widthwise.data.mixture import MixedData
from widthwise.data.prepared import PreparedData
from widthwise.data.tokenizer import Tokenizer
from widthwise.evaluation.batches import HFModel
from widthwise.evaluation.scorer import Scorer
from widthwise.files import read_json_mapping, read_text
from widthwise.interop.hf_import import (
    CONFIG,
    TOKENIZER,
    WIDTHWISE,
    import_hf,
    import_source,
    read_fields,
    tensor_files,
)
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
NOT_LOADED = "transformers cannot load it"


@dataclass(frozen=True)
class Model:
    """A model in memory, in evaluation mode and fp32."""

    path: Path
    model: Any
    """A `Decoder`, or a `PreTrainedModel` of transformers."""
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
        model = self.model
        dtype = torch.bfloat16 if self.precision_for(options) == "bf16" else None
        if options.no_bos:
            self.tokenizer.bos_id = None
        if not isinstance(model, Decoder):
            with refusing(f"{self.path}: {NOT_LOADED}", Exception):
                model = HFModel(model, self.n_positions)
        return Scorer(model, self.tokenizer, options.max_length or self.seq_len, options.batch_size, dtype)

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


def open_model(
    path: Path | str,
    device: torch.device | str | None = None,
    step: int | None = None,
    attention: str | None = None,
    as_decoder: bool = False,
) -> Model:
    """Load the model and tokenizer of a run, of a Hugging Face folder, or of `org/name` on the hub.

    A folder in the format `widthwise` becomes a `Decoder`, any other a model of transformers. step: of the checkpoint
    of a run; default: the newest undamaged one. attention: implementation of attention in transformers; None: its
    default. as_decoder: any folder that `widthwise import` reads becomes a `Decoder`. Raises UserError for a path
    without a model, and for a damaged one.
    """
    path, _ = import_source(path)
    device = usual_device(device)
    if not is_run(path, step):
        _check_tokenizer(path)
        if as_decoder or _is_own_format(path):
            return _read_decoder(path, device)
        return _read_with_transformers(path, device, attention)
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
        if not _is_own_format(path):
            require("transformers", "hf")
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


def _is_own_format(path: Path) -> bool:
    """Return True for a folder that `widthwise export` wrote as a `widthwise` model."""
    return read_json_mapping(path / CONFIG).get("model_type") == WIDTHWISE.model_type


def _read_decoder(path: Path, device: torch.device) -> Model:
    """Read a folder as `import_hf` does, without transformers. Raises UserError if it is damaged."""
    imported = import_hf(path)
    tokenizer_path = path / TOKENIZER
    tokenizer = JsonTokenizer(str(tokenizer_path), read_text(tokenizer_path), str(tokenizer_path), imported.eos)
    check_known(tokenizer, imported.config.vocab_size)
    model = build(imported.config, seed=0, device=device)
    model.set_weights(imported.take_weights())
    tokenizer = tokenizer.as_pretrained(imported.token_ids)
    return Model(path, model.eval(), tokenizer, device, imported.n_positions)


def _read_with_transformers(path: Path, device: torch.device, attention: str | None) -> Model:
    """Read a causal language model with transformers, from safetensors and without code from the folder.

    Raises UserError for a folder that transformers cannot load.
    """
    transformers = require("transformers", "hf")
    transformers.logging.disable_progress_bar()
    fields = read_fields(path)
    tensor_files(path)  # checks them
    for key, _ in fields.entries("_attn_implementation|configuration_files|transformers_weights"):
        raise UserError(f"{fields.where}: {key}: is not read, because it may name code or other files; leave it out")
    with refusing(f"{path}: {NOT_LOADED}", Exception):
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            path,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=torch.float32,
            attn_implementation=attention,
            output_loading_info=True,
        )
        if report["missing_keys"]:  # transformers would initialise them randomly
            raise UserError(f"{path}: has no tensor {min(report['missing_keys'])}, which {CONFIG} requires")
        model.to(device).eval()
    definition = read_text(path / TOKENIZER)
    ids = [config.eos_token_id for config in (model.generation_config, model.config)]
    ends = next((index for index in ids if index is not None), [])
    eos = token_named(definition, ends, str(path / TOKENIZER))
    tokenizer = JsonTokenizer(str(path / TOKENIZER), definition, str(path / TOKENIZER), eos)
    check_known(tokenizer, model.get_input_embeddings().num_embeddings)
    tokenizer = tokenizer.as_pretrained({"eos_token_id": ends})
    return Model(path, model, tokenizer, device, getattr(model.config, "max_position_embeddings", None))
