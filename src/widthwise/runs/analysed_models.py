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
from widthwise.config_io import UserError
from widthwise.data.config import open_data
from widthwise.data.documents import Corpus
from widthwise.data.extras import require
from widthwise.data.loader import HeldOut
from widthwise.data.tokenizer import Tokenizer
from widthwise.interop.hf_import import CONFIG
from widthwise.model.decoder import Decoder
from widthwise.model.dynamic_layers import dynamic_layers
from widthwise.recipe.recipe import saved_recipe
from widthwise.records.other_folders import other_folder
from widthwise.run_dir import RunDir
from widthwise.runs.analysed_text import held_out_text
from widthwise.runs.hf_folder import (
    FolderModel,
    check_tokenizer,
    is_model_folder,
    is_own_format,
    loading,
    read_own_model,
    read_with_transformers,
)
from widthwise.runs.result import model_analyses
from widthwise.runs.trained import chosen_checkpoint, load_trained, spent_by, tokenizer_of
from widthwise.training.observer import Observer
from widthwise.training.validation import validate


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
    tokens: int | None
    """Tokens that it was trained on; None where nobody knows."""
    beside: Callable[[HeldOut], dict[str, Any]]
    """What only some models have: `token_widths` and `virtual_width` as in the result of a run, and what exits cost."""
    notes: Sequence[str] = ()
    """Remarks for the user on how it was loaded."""


class ModelSource(ABC):
    """A path that holds a model."""

    kind: ClassVar[str]
    run: str | None = None
    """Name of the run, of which this is one checkpoint among others."""

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

    def __init__(self, path: Path, step: int | None = None, run: str | None = None):
        """step: of the checkpoint; the newest good one where not given."""
        super().__init__(path)
        self._step, self.run = step, run

    def check(self) -> None:
        run = RunDir(self.path)
        if self.run is None:  # whoever asks for all checkpoints has looked at each
            chosen_checkpoint(run, self._step)
        tokenizer_of(run)

    def load(self) -> LoadedModel:
        trained = load_trained(self.path, step=self._step)
        model, positions = trained.model, trained.model.config.positions
        return LoadedModel(
            DecoderSubject(model),
            trained.tokenizer,
            model.embedding.weight.device,
            trained.recipe.seq_len,
            None if positions is None else positions.n_positions,
            trained.step,
            spent_by(RunDir(self.path), trained.recipe, trained.step).tokens,
            lambda held_out: _analyses(model, held_out),
            [str(damage) for damage in trained.damages],
        )

    def text(self, observer: Observer) -> Corpus:
        """The held-out documents of the run's data."""
        data = open_data(saved_recipe(RunDir(self.path)).data, observer.preparing)
        return held_out_text(data)


def _analyses(model: Decoder, held_out: HeldOut) -> dict[str, Any]:
    widths = validate(model, held_out).token_widths if dynamic_layers(model.config) else None
    found = model_analyses(model, held_out, widths)
    config, seq_len = model.config, held_out.seq_len
    return {
        **found,
        "exit_flops": config.exit_flops(seq_len),
        "block_exit_flops": config.block_exit_flops(seq_len),
    }


class HFSource(ModelSource):
    """A Hugging Face folder with a causal language model, its weights as safetensors, and a tokenizer.json."""

    kind = "hf"

    def check(self) -> None:
        require("transformers", "hf")
        check_tokenizer(self.path)

    def load(self) -> LoadedModel:
        found = read_with_transformers(self.path, attention="sdpa")
        with loading(self.path):
            subject = HFSubject(found.model)
        return _loaded(found, subject, lambda held_out: {"token_widths": None, "virtual_width": None})

    def text(self, observer: Observer) -> Corpus:
        raise UserError(f"{self.path}: a Hugging Face folder brings no held-out text; name a text with --text")


class OwnFormatSource(HFSource):
    """A folder that `widthwise export` wrote as a `widthwise` model, read as a model of ours, without transformers."""

    def check(self) -> None:
        check_tokenizer(self.path)

    def load(self) -> LoadedModel:
        found = read_own_model(self.path)
        return _loaded(found, DecoderSubject(found.model), lambda held_out: _analyses(found.model, held_out))


def _loaded(found: FolderModel, subject: Subject, beside: Callable[[HeldOut], dict[str, Any]]) -> LoadedModel:
    return LoadedModel(subject, found.tokenizer, found.device, found.seq_len, found.n_positions, None, None, beside)


def model_source(path: Path, step: int | None = None) -> ModelSource:
    """The model at a path. step: of a run's checkpoint; its newest good one where not given.

    Raises UserError for a path that is neither a run nor a Hugging Face folder, and for a step of a folder.
    """
    if RunDir(path).exists:
        return RunSource(path, step)
    if is_model_folder(path):
        if step is not None:
            raise UserError(f"{path}: step: got {step}; a Hugging Face folder holds one model and knows no steps")
        return OwnFormatSource(path) if is_own_format(path) else HFSource(path)
    raise UserError(
        f"{path}: is neither a run directory (config.yaml) nor a Hugging Face folder ({CONFIG}){other_folder(path)}"
    )
