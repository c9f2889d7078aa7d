"""A Hugging Face folder -> a config of ours and weights by our names. Needs no transformers: JSON and safetensors."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from widthwise.config_io import UserError, mistakes_at
from widthwise.data.json_tokenizer import read_definition
from widthwise.files import read_json_mapping, read_text
from widthwise.interop.architecture import Architecture, HFTensor
from widthwise.interop.architectures import architecture_named
from widthwise.interop.fields import Fields
from widthwise.interop.tensor_folder import TensorFolder
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import parameter_shapes

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER = "tokenizer.json"
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
HEAD = "lm_head.weight"
LAYER_CONFIG = "per_layer_config"


@dataclass(frozen=True)
class Imported:
    """A model as its folder has it."""

    model_type: str
    config: ModelConfig
    weights: dict[str, Tensor]
    """Tensors by our names, tied ones once, in the types they are stored in."""
    n_positions: int
    """The longest context the model was made for, in tokens."""
    token_ids: dict[str, int | list[int]]
    """Ids of the special tokens that config.json names, by name."""
    tokenizer: Path | None
    """The tokenizer.json, if there is one."""
    eos: str | None
    """Its end-of-text token, if the folder names one."""


def import_hf(folder: Path | str) -> Imported:
    """Reads a folder as `save_pretrained` writes it. Raises UserError for what our models cannot do exactly."""
    folder = Path(folder)
    where = f"{folder / CONFIG}"
    data = read_json_mapping(folder / CONFIG)
    fields = Fields(data, where)
    architecture = architecture_named(data.get("model_type"), where)
    for key in ("quantization_config",) if architecture.has_layer_config else ("quantization_config", LAYER_CONFIG):
        if fields.get(key) is not None:
            raise UserError(f"{where}: {key}: is not supported; allowed: null")
    config = read_config(architecture, fields)
    tokenizer, token_ids = folder / TOKENIZER, _token_ids(folder, data)
    has_tokenizer = tokenizer.is_file()
    return Imported(
        model_type=architecture.model_type,
        config=config,
        weights=_weights(architecture, config, TensorFolder(folder)),
        n_positions=architecture.n_positions(fields),
        token_ids=token_ids,
        tokenizer=tokenizer if has_tokenizer else None,
        eos=token_named(read_text(tokenizer), token_ids.get("eos_token_id"), str(tokenizer)) if has_tokenizer else None,
    )


def read_config(architecture: Architecture, fields: Fields) -> ModelConfig:
    """As `Architecture.read`; what the model's own config refuses is a UserError too."""
    try:
        return architecture.read(fields)
    except UserError:  # says where already
        raise
    except ValueError as error:
        with mistakes_at(f"{fields.where}: model"):
            raise error


def _weights(architecture: Architecture, config: ModelConfig, folder: TensorFolder) -> dict[str, Tensor]:
    stored = _stored_names(architecture, folder.names)
    shapes, weights = parameter_shapes(config), {}
    for tensor in architecture.tensors(config):
        if tensor.name not in stored:
            raise UserError(f"{folder.folder}: has no tensor {tensor.name}, which {CONFIG} asks for")
        weights |= _parts(tensor, folder.read(stored.pop(tensor.name)), shapes, folder.folder)
    if config.tie_embeddings and HEAD in stored:
        _check_tied(folder, folder.read(stored.pop(HEAD)), weights["embedding.weight"])
    unknown = sorted(name for name in stored if not re.fullmatch(architecture.buffers, name))
    if unknown:
        raise UserError(f"{folder.folder}: has a tensor {unknown[0]}, which a {architecture.model_type} has not")
    return weights


def _stored_names(architecture: Architecture, names: set[str]) -> dict[str, str]:
    """Full name -> name in the file. A model saved without its head has names without the prefix."""
    prefix = architecture.base_prefix
    if any(name.startswith(prefix) for name in names):
        return {name: name for name in names}
    return {name if name == HEAD else prefix + name: name for name in names}


def _parts(tensor: HFTensor, stored: Tensor, shapes: Mapping[str, torch.Size], folder: Path) -> dict[str, Tensor]:
    """The parameters of ours that a tensor holds."""
    sizes = [shapes[part] for part in tensor.parts]
    wanted = (sum(size[0] for size in sizes), *sizes[0][1:])
    found = tuple(stored.shape)
    expected = wanted[::-1] if tensor.is_transposed else wanted
    if found != expected:
        raise UserError(f"{folder}: {tensor.name} has shape {found}; must be {expected}, by {CONFIG}")
    rows = stored.T if tensor.is_transposed else stored
    return {part: piece.contiguous() for part, piece in zip(tensor.parts, rows.split([size[0] for size in sizes]))}


def _check_tied(folder: TensorFolder, head: Tensor, embedding: Tensor) -> None:
    if head.shape != embedding.shape or not torch.equal(head, embedding):
        raise UserError(
            f"{folder.folder}: {HEAD} differs from the embedding, but {CONFIG} says tie_word_embeddings: true; "
            "set it to false to import both"
        )


def _token_ids(folder: Path, data: Mapping[str, Any]) -> dict[str, int | list[int]]:
    """From generation_config.json where there is one, which says what generation ends with, else from config.json."""
    path = folder / GENERATION_CONFIG
    generation = read_json_mapping(path) if path.is_file() else {}
    found = {key: generation.get(key, data.get(key)) for key in TOKEN_IDS}
    for key, value in found.items():
        ids = value if isinstance(value, list) else [value]
        if value is not None and not all(isinstance(index, int) for index in ids):
            raise UserError(f"{folder}: {key}: got {value!r}; allowed: the number of a token, or several")
    return {key: value for key, value in found.items() if value is not None}


def token_named(definition: str, index: int | list[int] | None, where: str) -> str | None:
    """How a tokenizer.json spells a token; of several the first. Raises UserError for a broken file, named by where."""
    first = index[0] if isinstance(index, list) and index else index
    if not isinstance(first, int):
        return None
    return read_definition(definition, where)[0].id_to_token(first)
