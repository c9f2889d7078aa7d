"""The models of an analysis: runs, and Hugging Face folders to compare them with."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from widthwise.analysis.decoder_subject import DecoderSubject
from widthwise.analysis.hf_subject import HFSubject
from widthwise.analysis.subject import Subject
from widthwise.config_io import UserError, read_text
from widthwise.data.config import open_data
from widthwise.data.documents import Corpus
from widthwise.data.extras import require
from widthwise.data.held_out import HeldOut
from widthwise.data.json_tokenizer import JsonTokenizer
from widthwise.data.tokenizer import Tokenizer
from widthwise.files import read_json_mapping
from widthwise.interop.architectures import WIDTHWISE
from widthwise.interop.fields import Fields
from widthwise.interop.hf_import import CONFIG, TOKENIZER, import_hf, token_named
from widthwise.model.decoder import Decoder, build
from widthwise.model.dynamic_layers import dynamic_layers
from widthwise.recipe.recipe import saved_recipe
from widthwise.run_dir import RunDir
from widthwise.runs.analysed_text import held_out_text
from widthwise.runs.result import model_analyses
from widthwise.runs.trained import load_trained, newest_checkpoint, tokenizer_of
from widthwise.training.observer import Observer
from widthwise.training.validation import validate

LONGEST_WINDOW = 1024
"""Most tokens per window, if no recipe gives their number."""


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory, in evaluation mode and fp32."""

    subject: Subject
    tokenizer: Tokenizer
    device: torch.device
    seq_len: int
    """Tokens per window if the user does not give it."""
    n_positions: int | None
    """Tokens of the longest window it can read; None: any."""
    step: int | None
    beside: Callable[[HeldOut], dict[str, Any]]
    """Statistics that only some models have: `token_widths` and `virtual_width`, as in the result of a run."""
    notes: Sequence[str] = ()
    """Remarks for the user on how it was loaded."""


class ModelSource(ABC):
    """A path that holds a model."""

    kind: ClassVar[str]

    def __init__(self, path: Path):
        self.path = path

    @abstractmethod
    def check(self) -> None:
        """Raises UserError for mistakes that can be found quickly, before `load` does."""

    @abstractmethod
    def load(self) -> LoadedModel:
        """The model. Raises UserError if there is none, or one that cannot be analysed."""

    @abstractmethod
    def text(self, observer: Observer) -> Corpus:
        """The text to analyse if the user names none. Raises UserError if there is none."""


class RunSource(ModelSource):
    """The model of a run directory."""

    kind = "widthwise"

    def check(self) -> None:
        run = RunDir(self.path)
        newest_checkpoint(run)
        tokenizer_of(run)

    def load(self) -> LoadedModel:
        trained = load_trained(self.path)
        model, positions = trained.model, trained.model.config.positions
        return LoadedModel(
            DecoderSubject(model),
            trained.tokenizer,
            model.embedding.weight.device,
            trained.recipe.seq_len,
            None if positions is None else positions.n_positions,
            trained.step,
            lambda held_out: _analyses(model, held_out),
            [str(damage) for damage in trained.damages],
        )

    def text(self, observer: Observer) -> Corpus:
        """The held-out documents of the run's data."""
        data = open_data(saved_recipe(RunDir(self.path)).data, observer.preparing)
        return held_out_text(data)


def _analyses(model: Decoder, held_out: HeldOut) -> dict[str, Any]:
    widths = validate(model, held_out).token_widths if dynamic_layers(model.config) else None
    return model_analyses(model, held_out, widths)


class HFSource(ModelSource):
    """A Hugging Face folder with a causal language model, its weights as safetensors, and a tokenizer.json."""

    kind = "hf"

    def check(self) -> None:
        require("transformers", "hf")
        if not (self.path / TOKENIZER).is_file():
            raise UserError(f"{self.path}: has no {TOKENIZER}, which text needs")

    def load(self) -> LoadedModel:
        self.check()
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        subject, model = self._subject(device)
        tokenizer_path = self.path / TOKENIZER
        tokenizer = self._tokenizer(model, tokenizer_path)
        _check_known(tokenizer, tokenizer_path, model.get_input_embeddings().num_embeddings)
        n_positions = getattr(model.config, "max_position_embeddings", None)
        return LoadedModel(
            subject,
            tokenizer,
            device,
            min(LONGEST_WINDOW, n_positions or LONGEST_WINDOW),
            n_positions,
            None,
            lambda held_out: {"token_widths": None, "virtual_width": None},
        )

    def _subject(self, device: torch.device) -> tuple[HFSubject, Any]:
        """The model, seen and as transformers has it. Raises UserError for a folder of which it makes none."""
        transformers = require("transformers", "hf")
        transformers.logging.disable_progress_bar()
        self._check_config()
        try:
            model, found = transformers.AutoModelForCausalLM.from_pretrained(
                self.path,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                dtype=torch.float32,
                attn_implementation="sdpa",
                output_loading_info=True,
            )
            if found["missing_keys"]:  # transformers would make them up
                raise UserError(f"{self.path}: has no tensor {min(found['missing_keys'])}, which {CONFIG} asks for")
            return HFSubject(model.to(device).eval()), model
        except UserError:
            raise
        except Exception as error:  # of a damaged folder, whatever the part that meets the damage raises
            raise UserError(f"{self.path}: transformers cannot load it ({type(error).__name__}: {error})") from None

    def _check_config(self) -> None:
        """Raises UserError for sizes that transformers would take without asking, and memory with them."""
        fields = Fields(read_json_mapping(self.path / CONFIG), str(self.path / CONFIG))
        for key in ("num_hidden_layers", "n_layer", "num_layers"):
            if fields.get(key) is not None:
                fields.n_layers(key)
        for key in ("max_position_embeddings", "n_positions"):
            if fields.get(key) is not None:
                fields.size(key)

    def _tokenizer(self, model: Any, path: Path) -> Tokenizer:
        definition = read_text(path)
        ids = (config.eos_token_id for config in (model.generation_config, model.config))
        eos = token_named(definition, next((index for index in ids if index is not None), None), str(path))
        return JsonTokenizer(str(path), definition, str(path), eos)

    def text(self, observer: Observer) -> Corpus:
        raise UserError(f"{self.path}: a Hugging Face folder brings no held-out text; name a text with --text")


class OwnFormatSource(HFSource):
    """A folder that `widthwise export` wrote as a `widthwise` model, read as a model of ours, without transformers."""

    def check(self) -> None:
        if not (self.path / TOKENIZER).is_file():
            raise UserError(f"{self.path}: has no {TOKENIZER}, which text needs")

    def load(self) -> LoadedModel:
        self.check()
        imported, path = import_hf(self.path), self.path / TOKENIZER
        tokenizer = JsonTokenizer(str(path), read_text(path), str(path), imported.eos)
        _check_known(tokenizer, path, imported.config.vocab_size)
        model = build(imported.config, seed=0, device="cuda" if torch.cuda.is_available() else "cpu")
        model.set_weights(imported.weights.items())
        model.eval()
        return LoadedModel(
            DecoderSubject(model),
            tokenizer,
            model.embedding.weight.device,
            min(LONGEST_WINDOW, imported.n_positions),
            imported.n_positions,
            None,
            lambda held_out: _analyses(model, held_out),
        )


def _check_known(tokenizer: Tokenizer, path: Path, vocab_size: int) -> None:
    """Raises UserError for a tokenizer with tokens that the model does not know."""
    if tokenizer.vocab_size > vocab_size:
        raise UserError(f"{path}: has {tokenizer.vocab_size} tokens; the model knows {vocab_size}")


def model_source(path: Path) -> ModelSource:
    """Raises UserError for a path that is neither a run nor a Hugging Face folder."""
    if RunDir(path).exists:
        return RunSource(path)
    if (path / CONFIG).is_file():
        is_own = read_json_mapping(path / CONFIG).get("model_type") == WIDTHWISE.model_type
        return OwnFormatSource(path) if is_own else HFSource(path)
    raise UserError(f"{path}: is neither a run directory (config.yaml) nor a Hugging Face folder ({CONFIG})")
