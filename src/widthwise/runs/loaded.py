"""Models read for use, with their tokenizers: of runs, and of Hugging Face folders, ours or those of transformers."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from widthwise.computing import Precision
from widthwise.config_io import UserError
from widthwise.data.config import open_data
from widthwise.data.extras import require
from widthwise.data.json_tokenizer import JsonTokenizer
from widthwise.data.mixture import MixedData
from widthwise.data.prepared import PreparedData
from widthwise.data.tokenizer import Tokenizer
from widthwise.evaluation.batches import HFModel
from widthwise.evaluation.scorer import Scorer
from widthwise.files import read_json_mapping, read_text
from widthwise.interop.architecture import Fields
from widthwise.interop.hf_import import CONFIG, TOKENIZER, WIDTHWISE, import_hf, token_named
from widthwise.model.decoder import Decoder, build
from widthwise.recipe.recipe import Recipe
from widthwise.run_dir import RunDir
from widthwise.runs.data_identity import has_seen_data, identity_of, recorded_identity
from widthwise.runs.scoring import ScoringOptions
from widthwise.runs.trained import load_trained, spent_by
from widthwise.sizes import MOST_LAYERS

HELD_OUT = "held-out"
"""Name of a run's own held-out text; of a mixture each source has its own, HELD_OUT/NAME."""
NAME_A_TEXT = "name a text with --text or --data"
LONGEST_WINDOW = 1024
"""Most tokens per window, if no recipe gives their number."""


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory, in evaluation mode and fp32."""

    path: Path
    model: Any
    """A `Decoder`, or a `PreTrainedModel` of transformers."""
    tokenizer: Tokenizer
    device: torch.device
    n_positions: int | None
    """Tokens of the longest text it was made for; None: any."""
    recipe: Recipe | None = None
    """None for a Hugging Face folder, as the rest."""
    step: int | None = None
    """Step of the checkpoint."""
    tokens: int | None = None
    """Tokens that it was trained on by that step, those of a run that it comes from included."""
    damages: Sequence[str] = ()
    """Newer checkpoints that could not be used, in words."""

    @property
    def seq_len(self) -> int:
        """Tokens per window if the user does not give it."""
        if self.recipe is not None:
            return self.recipe.seq_len
        return min(LONGEST_WINDOW, self.n_positions or LONGEST_WINDOW)

    def precision_for(self, options: ScoringOptions) -> Precision:
        """The type of the matrix products."""
        return options.precision or ("fp32" if self.recipe is None else self.recipe.train.settled_precision)

    def scorer(self, options: ScoringOptions) -> Scorer:
        """The model as a scorer of texts. Raises UserError where it reads fewer tokens than max_length."""
        dtype, model = torch.bfloat16 if self.precision_for(options) == "bf16" else None, self.model
        if not isinstance(model, Decoder):
            with loading(self.path):
                model = HFModel(model, self.n_positions)
        return Scorer(model, self.tokenizer, options.max_length or self.seq_len, options.batch_size, dtype)

    def own_texts(self) -> dict[str, tuple[PreparedData, int]]:
        """The held-out texts of a run's data by name, and the targets of each that validations use.

        One for each source of a mixture. The targets are whole windows of the recipe's seq_len, whatever an
        evaluation's; of a source that has none, one. Raises UserError where there is no text, or another than the run
        was trained on.
        """
        run, recipe = RunDir(self.path), self.recipe
        if recipe is None:
            raise UserError(
                f"{run.path}: a Hugging Face folder brings no held-out text; name a text with --text or --data"
            )
        if not has_seen_data(run):
            raise UserError(f"{run.path}: has seen no data yet; {NAME_A_TEXT}")
        data = open_data(recipe.data)
        before, now = recorded_identity(run), identity_of(data)
        if before != now:
            was, is_now = before.compared(now)
            raise UserError(
                f"{run.path}: was trained on {was}, which is now {is_now}; name a text with --text or --data"
            )
        held_out = recipe.held_out(data)
        if not isinstance(data, MixedData):
            return {HELD_OUT: (data, held_out.n_windows * recipe.seq_len)}
        n_windows = Counter(held_out.sources)
        return {
            f"{HELD_OUT}/{name}": (source, max(1, n_windows[name]) * recipe.seq_len)
            for name, source in data.sources.items()
        }


def load_model(
    path: Path | str, device: torch.device | str | None = None, step: int | None = None, attention: str | None = None
) -> LoadedModel:
    """The model of a run directory or of a Hugging Face folder. Raises UserError where it is neither, or damaged.

    A `widthwise` folder is read as a model of ours, any other by transformers. step: of the checkpoint of a run; its
    newest good one where not given. attention: as for `read_with_transformers`.
    """
    path = Path(path)
    if not is_run(path, step):
        return read_own_model(path, device) if is_own_format(path) else read_with_transformers(path, device, attention)
    trained = load_trained(path, device, step)
    model, positions = trained.model, trained.model.config.positions
    return LoadedModel(
        path,
        model,
        trained.tokenizer,
        model.embedding.weight.device,
        None if positions is None else positions.n_positions,
        trained.recipe,
        trained.step,
        spent_by(RunDir(path), trained.recipe, trained.step).tokens,
        [str(damage) for damage in trained.damages],
    )


def is_run(path: Path, step: int | None) -> bool:
    """Tell a run from a Hugging Face folder. Raises UserError for the step of a folder."""
    if RunDir(path).exists or not (path / CONFIG).is_file():
        return True
    if step is not None:
        raise UserError(f"{path}: step: got {step}; a Hugging Face folder holds one model and knows no steps")
    return False


def is_own_format(path: Path) -> bool:
    """Return True for a folder that `widthwise export` wrote as a `widthwise` model."""
    return read_json_mapping(path / CONFIG).get("model_type") == WIDTHWISE.model_type


def check_tokenizer(path: Path) -> None:
    """Raises UserError for a folder without a tokenizer."""
    if not (path / TOKENIZER).is_file():
        raise UserError(f"{path}: has no {TOKENIZER}, which text needs")


def read_own_model(path: Path, device: torch.device | str | None = None) -> LoadedModel:
    """A `widthwise` folder, without transformers. Raises UserError where it is damaged."""
    check_tokenizer(path)
    device = _device(device)
    imported, tokenizer_path = import_hf(path), path / TOKENIZER
    tokenizer = JsonTokenizer(str(tokenizer_path), read_text(tokenizer_path), str(tokenizer_path), imported.eos)
    _check_known(tokenizer, tokenizer_path, imported.config.vocab_size)
    model = build(imported.config, seed=0, device=device)
    model.set_weights(imported.weights.items())
    return LoadedModel(path, model.eval(), tokenizer, device, imported.n_positions)


def read_with_transformers(
    path: Path, device: torch.device | str | None = None, attention: str | None = None
) -> LoadedModel:
    """The causal language model that transformers makes of a folder, from safetensors and with its own code only.

    attention: its name for a way to compute attention; None: the one it prefers. Raises UserError for a folder of which
    it makes none.
    """
    transformers = require("transformers", "hf")
    transformers.logging.disable_progress_bar()
    check_tokenizer(path)
    _check_config(path)
    device = _device(device)
    with loading(path):
        model, found = transformers.AutoModelForCausalLM.from_pretrained(
            path,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=torch.float32,
            attn_implementation=attention,
            output_loading_info=True,
        )
        if found["missing_keys"]:  # transformers would make them up
            raise UserError(f"{path}: has no tensor {min(found['missing_keys'])}, which {CONFIG} asks for")
        model.to(device).eval()
    definition = read_text(path / TOKENIZER)
    ids = (config.eos_token_id for config in (model.generation_config, model.config))
    eos = token_named(definition, next((index for index in ids if index is not None), None), str(path / TOKENIZER))
    tokenizer = JsonTokenizer(str(path / TOKENIZER), definition, str(path / TOKENIZER), eos)
    _check_known(tokenizer, path / TOKENIZER, model.get_input_embeddings().num_embeddings)
    return LoadedModel(path, model, tokenizer, device, getattr(model.config, "max_position_embeddings", None))


@contextmanager
def loading(path: Path) -> Iterator[None]:
    """Names the folder in whatever is raised by the part of transformers that meets its damage, as a UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{path}: transformers cannot load it ({type(error).__name__}: {error})") from None


def _device(device: torch.device | str | None) -> torch.device:
    return torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))


def _check_config(path: Path) -> None:
    """Raises UserError for sizes that transformers would take without asking, and memory with them; and for the name of
    an implementation, which it may fetch from the network and run."""
    data = read_json_mapping(path / CONFIG)
    if '"_attn_implementation": ' in json.dumps(data):
        raise UserError(f"{path / CONFIG}: _attn_implementation: is not read, because it may name code; leave it out")
    fields = Fields(data, str(path / CONFIG))
    for key in ("num_hidden_layers", "n_layer", "num_layers"):
        if fields.get(key) is not None:
            fields.size(key, most=MOST_LAYERS)
    for key in ("max_position_embeddings", "n_positions"):
        if fields.get(key) is not None:
            fields.size(key)


def _check_known(tokenizer: Tokenizer, path: Path, vocab_size: int) -> None:
    """Raises UserError for a tokenizer with tokens that the model does not know."""
    if tokenizer.vocab_size > vocab_size:
        raise UserError(f"{path}: has {tokenizer.vocab_size} tokens; the model knows {vocab_size}")
