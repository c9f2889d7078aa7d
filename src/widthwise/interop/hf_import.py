"""Import of a Hugging Face folder from its JSON and safetensors, without transformers.

Models of the Hugging Face Hub are downloaded into the cache of huggingface_hub (extra `hf`).
"""

import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from widthwise.config_io import mistakes_at, refusing, require
from widthwise.data.json_tokenizer import token_named
from widthwise.files import MAX_JSON_BYTES, check_plain_file, read_json_mapping, read_text
from widthwise.interop.architecture import LARGEST, Architecture, Fields
from widthwise.interop.families import FAMILIES, REFUSED
from widthwise.interop.widthwise_format import Widthwise
from widthwise.mistakes import UserError
from widthwise.model.config import ModelConfig, cost_summary
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
"""Keys of TOKENIZER_CONFIG that a model keeps; none of them names code."""
SAMPLING_SETTINGS = (
    *("do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty"),
    *("no_repeat_ngram_size", "num_beams", "max_length", "max_new_tokens"),
)
"""Keys of GENERATION that a model keeps."""
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
IGNORED = (
    *("architectures", "auto_map", "torch_dtype", "dtype", "transformers_version", "_name_or_path", "use_cache"),
    *("model_type", "output_router_logits", "max_window_layers", "sliding_window", "pretraining_tp", *TOKEN_IDS),
    *("sliding_window_pattern", "_sliding_window_pattern", "cache_implementation", "hidden_act"),
    *("hidden_size", "intermediate_size", "initializer_range"),
)
"""Keys of CONFIG that are not reported as lost: they do not describe the model, or have no effect if unread."""
TOKENIZER_FILES = (TOKENIZER, TOKENIZER_CONFIG, SPECIAL_TOKENS, CHAT_TEMPLATE)
FETCHED = (CONFIG, GENERATION, *TOKENIZER_FILES, INDEX, ONE_FILE, "model-*.safetensors")
HUB_ERRORS = {
    "GatedRepoError": "is gated; accept its terms on its page, then run `hf auth login`",
    "RepositoryNotFoundError": "is neither a local folder nor a model on the hub; private ones need `hf auth login`",
    "RevisionNotFoundError": "has no such revision; allowed: a branch, a tag or a commit",
    "IncompleteSnapshotError": "cannot be reached, and the cache holds only some of its files",
    **dict.fromkeys(
        ("RevisionResolutionError", "LocalEntryNotFoundError"),
        "is no local folder, the hub cannot be reached (network, HF_HUB_OFFLINE), and the cache does not have it",
    ),
}
"""Errors of huggingface_hub -> our message; subclasses come before their base classes."""
HEAD = "lm_head.weight"

WIDTHWISE = Widthwise()
"""Our format, for models that no family can express."""
ARCHITECTURES: dict[str, Architecture] = {entry.model_type: entry for entry in (*FAMILIES.values(), WIDTHWISE)}


@dataclass(frozen=True)
class ImportedModel:
    """The content of a Hugging Face folder."""

    model_type: str
    config: ModelConfig
    weights: dict[str, Tensor]
    """Tensors by our names, tied ones once, in their stored dtypes; memory-mapped if possible."""
    n_positions: int
    """The longest context of the model, in tokens."""
    token_ids: dict[str, int | list[int]]
    """Ids of the special tokens by name, from generation_config.json, or else from config.json."""
    config_token_ids: dict[str, int | list[int]]
    """Ids from config.json alone. Its padding id is below vocab_size, as the embedding of transformers requires."""
    tokenizer: Path | None
    """The tokenizer.json, if any."""
    eos: str | None
    """The end-of-text token, if the folder names one."""
    settings: dict[str, dict[str, Any]]
    """TOKENIZER_CONFIG or GENERATION -> settings of this folder that an export writes into that file."""

    def take_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every weight and drop it, so that at most one is in memory."""
        for name in list(self.weights):
            yield name, self.weights.pop(name)


def import_hf(folder: Path | str) -> ImportedModel:
    """Read a folder from `save_pretrained`. Raises UserError for a model that our models cannot reproduce exactly."""
    folder = Path(folder)
    fields, architecture, config = read_model(folder)
    config_token_ids = _token_ids(fields, config.vocab_size, config.vocab_size)
    generation_file = folder / GENERATION
    generation = read_json_mapping(generation_file) if generation_file.is_file() else {}
    token_ids = config_token_ids | _token_ids(Fields(generation, str(generation_file)), config.vocab_size)
    tokenizer = folder / TOKENIZER
    has_tokenizer = tokenizer.is_file()
    eos = None
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
        settings=_settings(folder, generation) if has_tokenizer else {},
    )


@contextmanager
def optional_tokenizer() -> Iterator[None]:
    """Add to the error of an invalid tokenizer that the model can be imported without it."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{error}; or remove {TOKENIZER} to import the model alone") from None


def read_fields(folder: Path) -> Fields:
    """Return config.json of a folder. Every reader of a folder starts here.

    Raises UserError for a folder without it, for an adapter, for a device or a pipe among the files, which may block
    reading, and for numbers of layers, experts or labels for which transformers would allocate all memory.
    """
    where = folder / CONFIG
    if not folder.is_dir():
        problem = "is a file" if folder.exists() else "no such folder"
        raise UserError(f"{folder}: {problem}; allowed: a folder with {CONFIG} and {ONE_FILE}")
    if (folder / ADAPTER).exists():
        raise UserError(f"{folder}: holds an adapter ({ADAPTER}); merge it into its model, and save the result")
    if not where.exists() and any(folder.glob("*.gguf")):
        raise UserError(f"{folder}: holds a model of GGUF; allowed: a folder with {CONFIG} and {ONE_FILE}")
    for path in folder.iterdir():
        if not path.is_dir():
            check_plain_file(path, MAX_JSON_BYTES if path.suffix == ".json" else None)
    data = read_json_mapping(where)
    mappings = [data]
    for mapping in mappings:  # grows within the loop, to mappings at any depth
        mappings += [value for value in mapping.values() if isinstance(value, dict)]
        for key, value in mapping.items():
            is_count = re.fullmatch(r"\w*(layers?|blocks|experts|labels)", key) is not None
            if is_count and isinstance(value, int | float) and value > MOST_LAYERS:
                raise UserError(f"{where}: {key}: got {value}; allowed: a whole number up to {MOST_LAYERS}")
    return Fields(data, str(where))


def read_model(folder: Path) -> tuple[Fields, Architecture, ModelConfig]:
    """Return config.json of a folder and its model, without weights. Raises UserError as `import_hf`."""
    fields = read_fields(folder)
    model_type = fields.get("model_type")
    if model_type == "mistral" and fields.has("layer_types"):  # as AutoConfig reads it
        model_type = "ministral"
    if isinstance(model_type, str) and model_type in REFUSED:
        raise UserError(f"{fields.where}: model_type: a {model_type} has {REFUSED[model_type]}, which is not supported")
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        fields.refuse("model_type", ", ".join(sorted(ARCHITECTURES)))
    architecture = ARCHITECTURES[model_type]
    unsupported = ["quantization_config"] if architecture is WIDTHWISE else ["quantization_config", "per_layer_config"]
    for key in unsupported:
        if fields.get(key) is not None:
            raise UserError(f"{fields.where}: {key}: is not supported; allowed: null")
    return fields, architecture, read_config(architecture, fields)


def read_config(architecture: Architecture, fields: Fields) -> ModelConfig:
    """Read a config as `Architecture.read`, and raise errors of ModelConfig as UserErrors."""
    try:
        return architecture.read(fields)
    except UserError:  # has the path already
        raise
    except ValueError as error:
        with mistakes_at(f"{fields.where}: model"):
            raise error  # as a UserError with the path


def tensor_files(folder: Path) -> dict[str, Path]:
    """Return a dict from tensor to file, by the rules of transformers.

    Raises UserError for a folder without safetensors or with two sets of weights, and for a file that is missing or in
    another folder.
    """
    one_file = folder / ONE_FILE
    index = folder / INDEX
    if index.exists():
        weight_map = read_json_mapping(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
            raise UserError(f"{index}: weight_map: must map the names of tensors to names of files")
        for file in weight_map.values():
            if Path(file).name != file or not file.endswith(".safetensors"):
                raise UserError(f"{index}: weight_map: got {file!r}; allowed: a .safetensors file of the same folder")
        missing = next((file for file in weight_map.values() if not (folder / file).is_file()), None)
        if missing is None:
            if one_file.exists():
                raise UserError(f"{folder}: holds weights in {ONE_FILE} and in the files of {INDEX}; delete either")
            return {tensor: folder / file for tensor, file in weight_map.items()}
        if not one_file.exists():
            raise UserError(f"{folder / missing}: is missing; {INDEX} names it")
        warnings.warn(f"{index}: names {missing}, which is missing; {ONE_FILE} is read instead", stacklevel=2)
    if not one_file.is_file():
        pickled = sorted(file.name for pattern in PICKLED for file in folder.glob(pattern))
        if pickled:
            raise UserError(
                f"{folder}: holds only pickled weights ({pickled[0]}), which can run code when they are read; "
                f"allowed: {ONE_FILE}"
            )
        raise UserError(f"{folder}: holds no weights; allowed: {ONE_FILE}, or several with {INDEX}")
    with _opened(one_file) as file:
        return dict.fromkeys(file.keys(), one_file)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    with refusing(f"{path}: cannot be read", SafetensorError, OSError):
        check_plain_file(path)
        with safe_open(path, framework="pt") as file:
            yield file


def describe_folder(folder: Path) -> dict[str, Any]:
    """Return a summary of a folder from its config.json, without weights. Raises UserError as `import_hf`."""
    fields, architecture, config = read_model(folder)
    n_positions = architecture.n_positions(fields)
    return {
        "model_type": architecture.model_type,
        "n_positions": n_positions,
        "cost": cost_summary(config, n_positions).model_dump(),
        "windows": [layer.attention.window for layer in config.layers],
        "not_imported": {key: value for key, value in fields.unread().items() if key not in IGNORED},
    }


def _weights(architecture: Architecture, config: ModelConfig, folder: Path) -> dict[str, Tensor]:
    """Read the tensors, by our names. Raises UserError for damaged files, and for types that are not plain floats."""
    files = tensor_files(folder)
    prefix = architecture.base_prefix
    is_whole = any(name.startswith(prefix) for name in files)  # otherwise saved without its head and this prefix
    stored = {name if is_whole or name == HEAD else prefix + name: (name, path) for name, path in files.items()}

    def read(name: str) -> Tensor:
        stored_name, path = stored.pop(name)
        with _opened(path) as file:
            values = file.get_tensor(stored_name)
        if values.dtype not in TYPES:
            raise UserError(f"{path}: {stored_name} is of type {values.dtype}; allowed: fp32, bf16, fp16 and fp64")
        return values

    shapes = parameter_shapes(config)
    blocks: dict[str, list[Tensor]] = {}  # our parameter -> its rows; of a mixture, a block for each expert
    for tensor in architecture.tensors(config):
        if tensor.name not in stored:
            hint = "; set tie_word_embeddings to true if it is the embedding" if tensor.name == HEAD else ""
            raise UserError(f"{folder}: has no tensor {tensor.name}, which {CONFIG} requires{hint}")
        values = read(tensor.name)
        n_rows = [shapes[part][0] // tensor.n_blocks for part in tensor.parts]
        expected = (sum(n_rows), *shapes[tensor.parts[0]][1:])
        if tensor.is_transposed:
            expected = expected[::-1]
        if tuple(values.shape) != expected:
            raise UserError(f"{folder}: {tensor.name} has shape {tuple(values.shape)}; must be {expected}, by {CONFIG}")
        if tensor.is_transposed:
            values = values.T
        for part, rows in zip(tensor.parts, values.split(n_rows)):
            blocks.setdefault(part, []).append(rows)
    weights = {part: torch.cat(rows) if len(rows) > 1 else rows[0].contiguous() for part, rows in blocks.items()}
    if config.tie_embeddings and HEAD in stored and not torch.equal(read(HEAD), weights["embedding.weight"]):
        raise UserError(
            f"{folder}: {HEAD} differs from the embedding, but {CONFIG} says tie_word_embeddings: true; "
            "set it to false to import both"
        )
    unknown = sorted(name for name in stored if not re.fullmatch(architecture.buffers, name))
    if unknown:
        raise UserError(f"{folder}: has a tensor {unknown[0]}, which a {architecture.model_type} does not have")
    return weights


def _token_ids(fields: Fields, n_tokens: int, n_padding: int = LARGEST) -> dict[str, int | list[int]]:
    """Read the ids of special tokens, all below n_tokens. The padding id is below n_padding, or -1 for none."""
    ids = {key: fields.get(key) for key in TOKEN_IDS if fields.get(key) is not None}
    for key, value in ids.items():
        least, end = (-1, n_padding) if key == "pad_token_id" else (0, n_tokens)
        if not all(type(i) is int and least <= i < end for i in (value if isinstance(value, list) else [value])):
            fields.refuse(key, f"the number of a token, from {least} to {end - 1}, or several")
    return ids


def _settings(folder: Path, generation: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Read TOKENIZER_SETTINGS, and SAMPLING_SETTINGS in the content of GENERATION; see `ImportedModel.settings`."""
    paths = (folder / SPECIAL_TOKENS, folder / TOKENIZER_CONFIG)
    sources = [read_json_mapping(path) for path in paths if path.is_file()]
    template = {"chat_template": read_text(folder / CHAT_TEMPLATE)} if (folder / CHAT_TEMPLATE).is_file() else {}
    tokenizer: dict[str, Any] = {}
    for source in (*sources, template):
        tokenizer |= {key: source[key] for key in TOKENIZER_SETTINGS if source.get(key) is not None}
    for key in tokenizer.keys() & NAMED_TOKENS:
        if isinstance(tokenizer[key], dict):  # a token with flags, which are also in tokenizer.json
            tokenizer[key] = tokenizer[key].get("content")
    return {
        TOKENIZER_CONFIG: tokenizer,
        GENERATION: {key: generation[key] for key in SAMPLING_SETTINGS if generation.get(key) is not None},
    }


def hub_name(source: Path | str) -> str | None:
    """Return the org/name of `hf://org/name`, or of `org/name` if there is no such folder; None for a local folder.

    Raises UserError for an invalid name after `hf:`.
    """
    match = re.fullmatch(r"(hf:/+)?(\w[\w.-]*/[\w.-]+)", str(source))  # a Path drops one of two slashes
    if match is None and str(source).startswith("hf:/"):
        raise UserError(f"{source}: is not the name of a model of the hub; allowed: hf://org/name")
    return None if match is None or (match[1] is None and Path(source).exists()) else match[2]


def import_source(
    source: Path | str, revision: str | None = None, config_only: bool = False
) -> tuple[Path, dict[str, str]]:
    """Return the folder of a model, and its origin for the record of a run: `folder`, and for the hub `commit`.

    source: a local folder, `hf://org/name`, or `org/name` if there is no such folder; revision: branch, tag or commit;
    config_only: fetch only config.json.

    Only JSON, safetensors and the chat template are fetched, once for each commit. Without network, or with
    HF_HUB_OFFLINE=1, the newest commit of the revision in the cache is used. Raises UserError without the extra, and if
    the model cannot be fetched or has no safetensors.
    """
    name = hub_name(source)
    if name is None:
        if revision is not None:
            raise UserError(f"--revision: got {revision}; {source} is a local folder; only the hub has revisions")
        return Path(source), {"folder": Path(source).resolve().name}
    shown = name if revision is None else f"{name} at {revision}"
    try:
        hub, errors, utils = (require(f"huggingface_hub{part}", "hf") for part in ("", ".errors", ".utils"))
    except UserError as error:
        raise UserError(f"{shown}: is no local folder; for models of the hub, {error}") from None
    if not sys.stderr.isatty():
        utils.disable_progress_bars()
    try:
        pinned = hub.resolve_revision(name, revision=revision or "main")
        if re.fullmatch("[0-9a-f]{40}", pinned.resolved) is None:  # the commit becomes the name of a folder
            raise UserError(f"{shown}: the hub names the commit {pinned.resolved!r}; allowed: 40 hexadecimal digits")
        folder = Path(hub.snapshot_download(name, revision=pinned, allow_patterns=(CONFIG, ADAPTER)))
        read_model(folder)  # refuses a model before its weights are fetched
        if not config_only:
            folder = Path(hub.snapshot_download(name, revision=pinned, allow_patterns=FETCHED))
    except UserError:
        raise
    except Exception as error:  # of the hub, its HTTP library, or the disk
        reason = next((text for kind, text in HUB_ERRORS.items() if isinstance(error, getattr(errors, kind, ()))), None)
        status = getattr(getattr(error.__cause__ or error, "response", None), "status_code", 0)
        if status == 429 or status >= 500:
            reason = f"the hub answers with an error, HTTP {status}; try again later"
        raise UserError(f"{shown}: {reason or f'cannot be fetched ({error})'}") from None
    if not config_only and not any(folder.glob("*.safetensors")):
        raise UserError(
            f"{shown}: holds no {ONE_FILE}; weights in other files, such as pickles, which can run code when read, are "
            "not fetched"
        )
    return folder, {"folder": name, "commit": folder.name}
