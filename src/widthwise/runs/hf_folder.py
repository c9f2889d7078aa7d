"""Hugging Face folders read for use: the model, ours or that of transformers, and its tokenizer."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from widthwise.config_io import UserError
from widthwise.data.extras import require
from widthwise.data.json_tokenizer import JsonTokenizer
from widthwise.data.tokenizer import Tokenizer
from widthwise.files import read_json_mapping, read_text
from widthwise.interop.architectures import WIDTHWISE
from widthwise.interop.fields import Fields
from widthwise.interop.hf_import import CONFIG, TOKENIZER, import_hf, token_named
from widthwise.model.decoder import build

LONGEST_WINDOW = 1024
"""Most tokens per window, if no recipe gives their number."""


@dataclass(frozen=True)
class FolderModel:
    """A model in memory, in evaluation mode and fp32."""

    model: Any
    """A `Decoder`, or a `PreTrainedModel` of transformers."""
    tokenizer: Tokenizer
    device: torch.device
    n_positions: int | None
    """Tokens of the longest text it was made for; None: any."""

    @property
    def seq_len(self) -> int:
        """Tokens per window if the user does not give it."""
        return min(LONGEST_WINDOW, self.n_positions or LONGEST_WINDOW)


def is_model_folder(path: Path) -> bool:
    """Whether it looks like a Hugging Face folder."""
    return (path / CONFIG).is_file()


def is_own_format(path: Path) -> bool:
    """Whether `widthwise export` wrote the folder as a `widthwise` model."""
    return read_json_mapping(path / CONFIG).get("model_type") == WIDTHWISE.model_type


def check_tokenizer(path: Path) -> None:
    """Raises UserError for a folder without a tokenizer."""
    if not (path / TOKENIZER).is_file():
        raise UserError(f"{path}: has no {TOKENIZER}, which text needs")


def read_own_model(path: Path, device: torch.device | str | None = None) -> FolderModel:
    """A `widthwise` folder, without transformers. Raises UserError where it is damaged."""
    check_tokenizer(path)
    device = _device(device)
    imported, tokenizer_path = import_hf(path), path / TOKENIZER
    tokenizer = JsonTokenizer(str(tokenizer_path), read_text(tokenizer_path), str(tokenizer_path), imported.eos)
    _check_known(tokenizer, tokenizer_path, imported.config.vocab_size)
    model = build(imported.config, seed=0, device=device)
    model.set_weights(imported.weights.items())
    return FolderModel(model.eval(), tokenizer, device, imported.n_positions)


def read_with_transformers(
    path: Path, device: torch.device | str | None = None, attention: str | None = None
) -> FolderModel:
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
    tokenizer = _tokenizer(model, path / TOKENIZER)
    _check_known(tokenizer, path / TOKENIZER, model.get_input_embeddings().num_embeddings)
    return FolderModel(model, tokenizer, device, getattr(model.config, "max_position_embeddings", None))


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
            fields.n_layers(key)
    for key in ("max_position_embeddings", "n_positions"):
        if fields.get(key) is not None:
            fields.size(key)


def _tokenizer(model: Any, path: Path) -> Tokenizer:
    definition = read_text(path)
    ids = (config.eos_token_id for config in (model.generation_config, model.config))
    eos = token_named(definition, next((index for index in ids if index is not None), None), str(path))
    return JsonTokenizer(str(path), definition, str(path), eos)


def _check_known(tokenizer: Tokenizer, path: Path, vocab_size: int) -> None:
    """Raises UserError for a tokenizer with tokens that the model does not know."""
    if tokenizer.vocab_size > vocab_size:
        raise UserError(f"{path}: has {tokenizer.vocab_size} tokens; the model knows {vocab_size}")
