"""A Hugging Face folder -> a config of ours and weights by our names. Needs no transformers: JSON and safetensors."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from widthwise.config_io import UserError, mistakes_at
from widthwise.data.json_tokenizer import read_definition
from widthwise.files import read_json_mapping, read_text
from widthwise.interop.architecture import Architecture, Fields, HFTensor
from widthwise.interop.families import GPT2, Llama, OLMo2, Qwen2, Qwen3
from widthwise.interop.widthwise_format import Widthwise
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import parameter_shapes

ONE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER = "tokenizer.json"
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
HEAD = "lm_head.weight"
LAYER_CONFIG = "per_layer_config"

ARCHITECTURES: tuple[Architecture, ...] = (GPT2(), OLMo2(), Qwen3(), Qwen2(), Llama())
"""In the order in which they may claim a model."""
WIDTHWISE = Widthwise()
"""Ours, for models that the others cannot express."""


def architecture_named(model_type: Any, where: str) -> Architecture:
    """Return an architecture. Raises UserError for an unknown one. where: the file that names it, for errors."""
    known = {architecture.model_type: architecture for architecture in (*ARCHITECTURES, WIDTHWISE)}
    if not isinstance(model_type, str) or model_type not in known:
        raise UserError(f"{where}: model_type: got {model_type!r}; allowed: {', '.join(sorted(known))}")
    return known[model_type]


def architecture_of(config: ModelConfig) -> Architecture:
    """Return the only architecture that transformers always knows and that may express the model."""
    return next(architecture for architecture in ARCHITECTURES if architecture.claims(config))


@dataclass(frozen=True)
class ImportedModel:
    """The content of a Hugging Face folder."""

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


def import_hf(folder: Path | str) -> ImportedModel:
    """Read a folder that `save_pretrained` wrote. Raises UserError for a model that ours cannot equal exactly."""
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
    return ImportedModel(
        model_type=architecture.model_type,
        config=config,
        weights=_weights(architecture, config, TensorFolder(folder)),
        n_positions=architecture.n_positions(fields),
        token_ids=token_ids,
        tokenizer=tokenizer if has_tokenizer else None,
        eos=token_named(read_text(tokenizer), token_ids.get("eos_token_id"), str(tokenizer)) if has_tokenizer else None,
    )


def read_config(architecture: Architecture, fields: Fields) -> ModelConfig:
    """Read a config as `Architecture.read`, with the errors of ModelConfig as UserErrors too."""
    try:
        return architecture.read(fields)
    except UserError:  # says where already
        raise
    except ValueError as error:
        with mistakes_at(f"{fields.where}: model"):
            raise error


class TensorFolder:
    """Tensors by name, read one by one."""

    def __init__(self, folder: Path):
        """Raises UserError if there are no safetensors, or the index names a missing file."""
        self.folder = folder
        self._file_of = self._index() if (folder / INDEX).is_file() else self._of_one_file()

    @property
    def names(self) -> set[str]:
        return set(self._file_of)

    def read(self, name: str) -> Tensor:
        """Read a tensor. Raises UserError for a damaged file, and for numbers that are no plain floats."""
        path = self._file_of[name]
        with self._opened(path) as file:
            tensor = file.get_tensor(name)
        if tensor.dtype not in TYPES:
            raise UserError(f"{path}: {name} is of type {tensor.dtype}; allowed: fp32, bf16, fp16 and fp64")
        return tensor

    def _of_one_file(self) -> dict[str, Path]:
        path = self.folder / ONE_FILE
        if not path.is_file():
            pickled = sorted(found.name for pattern in PICKLED for found in self.folder.glob(pattern))
            if pickled:
                raise UserError(
                    f"{self.folder}: holds only pickled weights ({pickled[0]}), which can run code when they are read; "
                    f"allowed: {ONE_FILE}"
                )
            raise UserError(f"{self.folder}: holds no weights; allowed: {ONE_FILE}, or several with {INDEX}")
        with self._opened(path) as file:
            return dict.fromkeys(file.keys(), path)

    def _index(self) -> dict[str, Path]:
        path = self.folder / INDEX
        names = read_json_mapping(path).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise UserError(f"{path}: weight_map: must map the names of tensors to names of files")
        return {name: self._shard(path, file_name) for name, file_name in names.items()}

    def _shard(self, index: Path, file_name: str) -> Path:
        path = self.folder / file_name
        if Path(file_name).name != file_name or not file_name.endswith(".safetensors"):
            raise UserError(f"{index}: weight_map: got {file_name!r}; allowed: a .safetensors file of the same folder")
        if not path.is_file():
            raise UserError(f"{path}: is missing; {INDEX} names it")
        return path

    @contextmanager
    def _opened(self, path: Path) -> Iterator[Any]:
        try:
            with safe_open(path, framework="pt") as file:
                yield file
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path}: cannot be read ({error})") from None


def _weights(architecture: Architecture, config: ModelConfig, folder: TensorFolder) -> dict[str, Tensor]:
    stored = _stored_names(architecture, folder.names)
    shapes, weights = parameter_shapes(config), {}
    for tensor in architecture.tensors(config):
        if tensor.name not in stored:
            raise UserError(f"{folder.folder}: has no tensor {tensor.name}, which {CONFIG} asks for")
        weights |= _parts(tensor, folder.read(stored.pop(tensor.name)), shapes, folder.folder)
    head = folder.read(stored.pop(HEAD)) if config.tie_embeddings and HEAD in stored else None
    if head is not None and not torch.equal(head, weights["embedding.weight"]):
        raise UserError(
            f"{folder.folder}: {HEAD} differs from the embedding, but {CONFIG} says tie_word_embeddings: true; "
            "set it to false to import both"
        )
    unknown = sorted(name for name in stored if not re.fullmatch(architecture.buffers, name))
    if unknown:
        raise UserError(f"{folder.folder}: has a tensor {unknown[0]}, which a {architecture.model_type} has not")
    return weights


def _stored_names(architecture: Architecture, names: set[str]) -> dict[str, str]:
    """Map full names to those in the file, which lack the prefix in a model saved without its head."""
    prefix = architecture.base_prefix
    if any(name.startswith(prefix) for name in names):
        return {name: name for name in names}
    return {name if name == HEAD else prefix + name: name for name in names}


def _parts(tensor: HFTensor, stored: Tensor, shapes: Mapping[str, torch.Size], folder: Path) -> dict[str, Tensor]:
    """Split a tensor into our parameters."""
    sizes = [shapes[part] for part in tensor.parts]
    wanted = (sum(size[0] for size in sizes), *sizes[0][1:])
    found = tuple(stored.shape)
    expected = wanted[::-1] if tensor.is_transposed else wanted
    if found != expected:
        raise UserError(f"{folder}: {tensor.name} has shape {found}; must be {expected}, by {CONFIG}")
    rows = stored.T if tensor.is_transposed else stored
    return {part: piece.contiguous() for part, piece in zip(tensor.parts, rows.split([size[0] for size in sizes]))}


def _token_ids(folder: Path, data: Mapping[str, Any]) -> dict[str, int | list[int]]:
    """Read the special tokens from generation_config.json, which may name other ends, else from config.json."""
    path = folder / GENERATION_CONFIG
    generation = read_json_mapping(path) if path.is_file() else {}
    found = {key: generation.get(key, data.get(key)) for key in TOKEN_IDS}
    for key, value in found.items():
        ids = value if isinstance(value, list) else [value]
        if value is not None and not all(isinstance(index, int) for index in ids):
            raise UserError(f"{folder}: {key}: got {value!r}; allowed: the number of a token, or several")
    return {key: value for key, value in found.items() if value is not None}


def token_named(definition: str, index: int | list[int] | None, where: str) -> str | None:
    """Return the text of a token, the first of several, in a tokenizer.json. Raises UserError for a broken file."""
    first = index[0] if isinstance(index, list) and index else index
    if not isinstance(first, int):
        return None
    return read_definition(definition, where)[0].id_to_token(first)
