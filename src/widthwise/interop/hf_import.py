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

from widthwise.config_io import UserError, mistakes_at, refusing
from widthwise.data.json_tokenizer import read_definition
from widthwise.files import check_plain_file, read_json_mapping, read_text
from widthwise.interop.architecture import Architecture, Fields
from widthwise.interop.families import FAMILIES
from widthwise.interop.widthwise_format import Widthwise
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import parameter_shapes

ONE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
CONFIG = "config.json"
GENERATION = "generation_config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
CHAT_TEMPLATE = "chat_template.jinja"
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
TOKENIZER_SETTINGS = (
    *NAMED_TOKENS,
    *("additional_special_tokens", "extra_special_tokens", "chat_template", "padding_side", "truncation_side"),
    *("model_max_length", "clean_up_tokenization_spaces", "model_input_names"),
)
"""Keys of TOKENIZER_CONFIG that stay with a model; none of them names code."""
SAMPLING_SETTINGS = (
    *("do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty"),
    *("no_repeat_ngram_size", "num_beams", "max_length", "max_new_tokens"),
)
"""Keys of GENERATION that stay with a model."""
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
HEAD = "lm_head.weight"
LAYER_CONFIG = "per_layer_config"

WIDTHWISE = Widthwise()
"""Ours, for models that the others cannot express."""
ARCHITECTURES: dict[str, Architecture] = {each.model_type: each for each in (*FAMILIES, WIDTHWISE)}


@dataclass(frozen=True)
class ImportedModel:
    """The content of a Hugging Face folder."""

    model_type: str
    config: ModelConfig
    weights: dict[str, Tensor]
    """Tensors by our names, tied ones once, in the types they are stored in; mapped files where they can be."""
    n_positions: int
    """The longest context the model was made for, in tokens."""
    token_ids: dict[str, int | list[int]]
    """Ids of the special tokens that config.json names, by name."""
    tokenizer: Path | None
    """The tokenizer.json, if there is one."""
    eos: str | None
    """Its end-of-text token, if the folder names one."""
    settings: dict[str, dict[str, Any]]
    """TOKENIZER_SETTINGS and SAMPLING_SETTINGS that the folder has, by the file of an export."""

    def take_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every weight and let go of it, so that no more than one lies in memory."""
        for name in list(self.weights):
            yield name, self.weights.pop(name)


def import_hf(folder: Path | str) -> ImportedModel:
    """Read a folder that `save_pretrained` wrote. Raises UserError for a model that ours cannot equal exactly."""
    folder = Path(folder)
    where = str(folder / CONFIG)
    if not folder.is_dir():
        found = "is a file" if folder.exists() else "no such folder"
        raise UserError(f"{folder}: {found}; allowed: a folder with {CONFIG} and {ONE_FILE}")
    data = read_json_mapping(folder / CONFIG)
    fields = Fields(data, where)
    model_type = data.get("model_type")
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        raise UserError(f"{where}: model_type: got {model_type!r}; allowed: {', '.join(sorted(ARCHITECTURES))}")
    architecture = ARCHITECTURES[model_type]
    for key in ("quantization_config",) if architecture is WIDTHWISE else ("quantization_config", LAYER_CONFIG):
        if fields.get(key) is not None:
            raise UserError(f"{where}: {key}: is not supported; allowed: null")
    config = read_config(architecture, fields)
    tokenizer, token_ids = folder / TOKENIZER, _token_ids(folder, data)
    has_tokenizer, eos = tokenizer.is_file(), None
    if has_tokenizer:
        with optional_tokenizer():
            eos = token_named(read_text(tokenizer), token_ids.get("eos_token_id"), str(tokenizer))
    return ImportedModel(
        model_type=architecture.model_type,
        config=config,
        weights=_weights(architecture, config, folder),
        n_positions=architecture.n_positions(fields),
        token_ids=token_ids,
        tokenizer=tokenizer if has_tokenizer else None,
        eos=eos,
        settings=_settings(folder) if has_tokenizer else {},
    )


@contextmanager
def optional_tokenizer() -> Iterator[None]:
    """Add to the error of an unusable tokenizer that the model can be imported without it."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{error}; or remove {TOKENIZER} to import the model alone") from None


def read_config(architecture: Architecture, fields: Fields) -> ModelConfig:
    """Read a config as `Architecture.read`, with the errors of ModelConfig as UserErrors too."""
    try:
        return architecture.read(fields)
    except UserError:  # says where already
        raise
    except ValueError as error:
        with mistakes_at(f"{fields.where}: model"):
            raise error


def _files(folder: Path) -> dict[str, Path]:
    """Return the file of each tensor. Raises UserError without safetensors, and for a file that is missing."""
    path, index = folder / ONE_FILE, folder / INDEX
    if index.is_file():
        names = read_json_mapping(index).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise UserError(f"{index}: weight_map: must map the names of tensors to names of files")
        for name in names.values():
            if Path(name).name != name or not name.endswith(".safetensors"):
                raise UserError(f"{index}: weight_map: got {name!r}; allowed: a .safetensors file of the same folder")
            if not (folder / name).is_file():
                raise UserError(f"{folder / name}: is missing; {INDEX} names it")
        return {name: folder / file_name for name, file_name in names.items()}
    if not path.is_file():
        pickled = sorted(found.name for pattern in PICKLED for found in folder.glob(pattern))
        if pickled:
            raise UserError(
                f"{folder}: holds only pickled weights ({pickled[0]}), which can run code when they are read; "
                f"allowed: {ONE_FILE}"
            )
        raise UserError(f"{folder}: holds no weights; allowed: {ONE_FILE}, or several with {INDEX}")
    with _opened(path) as file:
        return dict.fromkeys(file.keys(), path)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    with refusing(f"{path}: cannot be read", SafetensorError, OSError):
        check_plain_file(path)
        with safe_open(path, framework="pt") as file:
            yield file


def _weights(architecture: Architecture, config: ModelConfig, folder: Path) -> dict[str, Tensor]:
    """Read the tensors, by our names. Raises UserError for damaged files, and for numbers that are no plain floats."""
    file_of, prefix = _files(folder), architecture.base_prefix
    is_whole = any(name.startswith(prefix) for name in file_of)  # else saved without its head
    stored = {name if is_whole or name == HEAD else prefix + name: (name, path) for name, path in file_of.items()}

    def read(name: str) -> Tensor:
        own_name, path = stored.pop(name)
        with _opened(path) as file:
            found = file.get_tensor(own_name)
        if found.dtype not in TYPES:
            raise UserError(f"{path}: {own_name} is of type {found.dtype}; allowed: fp32, bf16, fp16 and fp64")
        return found

    shapes, weights = parameter_shapes(config), {}
    for tensor in architecture.tensors(config):
        if tensor.name not in stored:
            raise UserError(f"{folder}: has no tensor {tensor.name}, which {CONFIG} asks for")
        found = read(tensor.name)
        sizes = [shapes[part] for part in tensor.parts]
        wanted = (sum(size[0] for size in sizes), *sizes[0][1:])
        expected = wanted[::-1] if tensor.is_transposed else wanted
        if tuple(found.shape) != expected:
            raise UserError(f"{folder}: {tensor.name} has shape {tuple(found.shape)}; must be {expected}, by {CONFIG}")
        rows = (found.T if tensor.is_transposed else found).split([size[0] for size in sizes])
        weights |= {part: piece.contiguous() for part, piece in zip(tensor.parts, rows)}
    if config.tie_embeddings and HEAD in stored and not torch.equal(read(HEAD), weights["embedding.weight"]):
        raise UserError(
            f"{folder}: {HEAD} differs from the embedding, but {CONFIG} says tie_word_embeddings: true; "
            "set it to false to import both"
        )
    unknown = sorted(name for name in stored if not re.fullmatch(architecture.buffers, name))
    if unknown:
        raise UserError(f"{folder}: has a tensor {unknown[0]}, which a {architecture.model_type} does not have")
    return weights


def _token_ids(folder: Path, data: Mapping[str, Any]) -> dict[str, int | list[int]]:
    """Read the special tokens from generation_config.json, which may name other ends, else from config.json."""
    path = folder / GENERATION
    generation = read_json_mapping(path) if path.is_file() else {}
    found = {key: generation.get(key, data.get(key)) for key in TOKEN_IDS}
    for key, value in found.items():
        ids = value if isinstance(value, list) else [value]
        if value is not None and not all(isinstance(index, int) for index in ids):
            raise UserError(f"{folder}: {key}: got {value!r}; allowed: the number of a token, or several")
    return {key: value for key, value in found.items() if value is not None}


def _settings(folder: Path) -> dict[str, dict[str, Any]]:
    """Read what transformers knows of a tokenizer and of sampling besides the ids of tokens."""
    files = {name: folder / name for name in (SPECIAL_TOKENS, TOKENIZER_CONFIG, GENERATION)}
    data = {name: read_json_mapping(path) for name, path in files.items() if path.is_file()}
    template = {"chat_template": read_text(folder / CHAT_TEMPLATE)} if (folder / CHAT_TEMPLATE).is_file() else {}
    tokenizer: dict[str, Any] = {}
    for found in (data.get(SPECIAL_TOKENS, {}), data.get(TOKENIZER_CONFIG, {}), template):
        tokenizer |= {key: found[key] for key in TOKENIZER_SETTINGS if found.get(key) is not None}
    for key in tokenizer.keys() & NAMED_TOKENS:
        if isinstance(tokenizer[key], dict):  # a token with its flags, which tokenizer.json has too
            tokenizer[key] = tokenizer[key].get("content")
    sampling = data.get(GENERATION, {})
    return {
        TOKENIZER_CONFIG: tokenizer,
        GENERATION: {key: sampling[key] for key in SAMPLING_SETTINGS if sampling.get(key) is not None},
    }


def token_named(definition: str, index: int | list[int] | None, where: str) -> str | None:
    """Return the text of a token, the first of several, in a tokenizer.json. Raises UserError for a broken file."""
    first = index[0] if isinstance(index, list) and index else index
    if not isinstance(first, int):
        return None
    return read_definition(definition, where)[0].id_to_token(first)
