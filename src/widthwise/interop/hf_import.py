"""A Hugging Face folder -> a config of ours and weights by our names. Needs no transformers: JSON and safetensors."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from widthwise.config_io import UserError, mistakes_at, refusing
from widthwise.data.json_tokenizer import read_definition
from widthwise.files import MAX_JSON_BYTES, check_plain_file, read_json_mapping, read_text
from widthwise.interop.architecture import MOST, Architecture, Fields
from widthwise.interop.families import FAMILIES
from widthwise.interop.widthwise_format import Widthwise
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import parameter_shapes
from widthwise.sizes import MOST_LAYERS

ONE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
ADAPTER = "adapter_config.json"
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
    """Ids of the special tokens by name, from generation_config.json where it names them, else from config.json."""
    config_token_ids: dict[str, int | list[int]]
    """Ids in config.json alone, whose padding must be a token of the model."""
    tokenizer: Path | None
    """The tokenizer.json, if there is one."""
    eos: str | None
    """Its end-of-text token, if the folder names one."""
    settings: dict[str, dict[str, Any]]
    """TOKENIZER_SETTINGS and SAMPLING_SETTINGS that the folder has, by the file of an export."""

    def take_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every weight and let go of it, so that no more than one is in memory."""
        for name in list(self.weights):
            yield name, self.weights.pop(name)


def import_hf(folder: Path | str) -> ImportedModel:
    """Read a folder that `save_pretrained` wrote. Raises UserError for a model that ours cannot equal exactly."""
    folder = Path(folder)
    fields, architecture, config = read_model(folder)
    tokenizer, generation = folder / TOKENIZER, folder / GENERATION
    config_token_ids = _token_ids(fields, config.vocab_size, config.vocab_size)
    token_ids = dict(config_token_ids)
    if generation.is_file():
        token_ids |= _token_ids(Fields(read_json_mapping(generation), str(generation)), config.vocab_size, MOST)
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
        config_token_ids=config_token_ids,
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


def read_fields(folder: Path) -> Fields:
    """Return config.json of a folder, the first step of every reader of one.

    Raises UserError for a folder without it, for an adapter, for a device or a pipe among its files, from which reading
    may never end, and for numbers of layers, experts or labels for which transformers would take all memory.
    """
    where = folder / CONFIG
    if not folder.is_dir():
        problem = "is a file" if folder.exists() else "no such folder"
        raise UserError(f"{folder}: {problem}; allowed: a folder with {CONFIG} and {ONE_FILE}")
    if (folder / ADAPTER).exists():
        raise UserError(f"{folder}: holds an adapter ({ADAPTER}); merge it into its model, and save that")
    if not where.exists() and any(folder.glob("*.gguf")):
        raise UserError(f"{folder}: holds a model of GGUF; allowed: a folder with {CONFIG} and {ONE_FILE}")
    for path in folder.iterdir():
        if not path.is_dir():
            check_plain_file(path, MAX_JSON_BYTES if path.suffix == ".json" else None)
    fields = Fields(read_json_mapping(where), str(where))
    for key, value in fields.entries(r"\w*(?:layers?|blocks|experts|labels)"):
        if isinstance(value, int | float) and value > MOST_LAYERS:
            raise UserError(f"{where}: {key}: got {value}; allowed: a whole number up to {MOST_LAYERS}")
    return fields


def read_model(folder: Path) -> tuple[Fields, Architecture, ModelConfig]:
    """Return config.json of a folder and the model it describes. Raises UserError as `import_hf`; needs no weights."""
    fields = read_fields(folder)
    model_type = fields.get("model_type")
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        fields.refuse("model_type", ", ".join(sorted(ARCHITECTURES)))
    architecture = ARCHITECTURES[model_type]
    for key in ("quantization_config",) if architecture is WIDTHWISE else ("quantization_config", LAYER_CONFIG):
        if fields.get(key) is not None:
            raise UserError(f"{fields.where}: {key}: is not supported; allowed: null")
    return fields, architecture, read_config(architecture, fields)


def read_config(architecture: Architecture, fields: Fields) -> ModelConfig:
    """Read a config as `Architecture.read`, with the errors of ModelConfig as UserErrors too."""
    try:
        return architecture.read(fields)
    except UserError:  # names the place already
        raise
    except ValueError as error:
        with mistakes_at(f"{fields.where}: model"):
            raise error


def tensor_files(folder: Path) -> dict[str, Path]:
    """Return the file of each tensor, as transformers finds it.

    Raises UserError without safetensors, for a file that is missing or in another folder, and where the folder holds
    two sets of weights.
    """
    path, index = folder / ONE_FILE, folder / INDEX
    if index.exists():
        names = read_json_mapping(index).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise UserError(f"{index}: weight_map: must map the names of tensors to names of files")
        for name in names.values():
            if Path(name).name != name or not name.endswith(".safetensors"):
                raise UserError(f"{index}: weight_map: got {name!r}; allowed: a .safetensors file of the same folder")
        missing = next((name for name in names.values() if not (folder / name).is_file()), None)
        if path.exists() and missing is None:
            raise UserError(f"{folder}: holds weights in {ONE_FILE} and in the files of {INDEX}; delete either")
        if path.exists():
            warnings.warn(f"{index}: names {missing}, which is missing; {ONE_FILE} is read instead", stacklevel=2)
        elif missing is not None:
            raise UserError(f"{folder / missing}: is missing; {INDEX} names it")
        else:
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
    file_of, prefix = tensor_files(folder), architecture.base_prefix
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
            way_out = "; set tie_word_embeddings to true if it is the embedding" if tensor.name == HEAD else ""
            raise UserError(f"{folder}: has no tensor {tensor.name}, which {CONFIG} asks for{way_out}")
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


def _token_ids(fields: Fields, n_tokens: int, n_padding: int) -> dict[str, int | list[int]]:
    """Read the special tokens of a file: numbers below n_tokens, and for padding from -1, none, to below n_padding."""
    ids = {key: value for key in TOKEN_IDS if (value := fields.get(key)) is not None}
    for key, value in ids.items():
        least, end = (-1, n_padding) if key == "pad_token_id" else (0, n_tokens)
        if not all(type(i) is int and least <= i < end for i in (value if isinstance(value, list) else [value])):
            fields.refuse(key, f"the number of a token, from {least} to {end - 1}, or several")
    return ids


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
    if first is None or first == []:
        return None
    if type(first) is not int or not 0 <= first <= MOST:
        raise UserError(f"{where}: the model names {first!r} as its end of text; allowed: the number of a token")
    return read_definition(definition, where)[0].id_to_token(first)
