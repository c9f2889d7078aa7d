"""Models read for use: of runs, and of Hugging Face folders, ours or those of transformers."""

from pathlib import Path
from typing import Any

import torch

from widthwise.config_io import UserError, require
from widthwise.data.json_tokenizer import JsonTokenizer
from widthwise.files import read_json_mapping, read_text
from widthwise.interop.architecture import Fields
from widthwise.interop.hf_import import (
    CONFIG,
    TOKENIZER,
    WIDTHWISE,
    import_hf,
    read_fields,
    tensor_files,
    token_named,
)
from widthwise.model.decoder import build
from widthwise.run_dir import RunDir
from widthwise.runs.trained import LoadedModel, blamed_on, check_known, load_trained, usual_device

MOST_POSITIONS = 2**24
MOST_BUFFERED = 2**30
"""Bytes of tensors that are no weights, such as a causal mask of all positions."""


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
    return load_trained(path, device, step)


def load_decoder(path: Path | str, step: int | None = None) -> LoadedModel:
    """The model of a run, or of a Hugging Face folder that `widthwise import` reads, as a model of ours."""
    path = Path(path)
    return load_trained(path, step=step) if is_run(path, step) else read_own_model(path)


def is_run(path: Path, step: int | None) -> bool:
    """Tell a run from a Hugging Face folder. Raises UserError for the step of a folder."""
    if RunDir(path).exists or not (path / CONFIG).is_file():
        return True
    if step is not None:
        raise UserError(f"{path}: step: got {step}; a Hugging Face folder holds one model and has no steps")
    return False


def is_own_format(path: Path) -> bool:
    """Return True for a folder that `widthwise export` wrote as a `widthwise` model."""
    return read_json_mapping(path / CONFIG).get("model_type") == WIDTHWISE.model_type


def check_tokenizer(path: Path) -> None:
    """Raises UserError for a folder without a tokenizer."""
    if not (path / TOKENIZER).is_file():
        raise UserError(f"{path}: has no {TOKENIZER}, which is needed for text")


def read_own_model(path: Path, device: torch.device | str | None = None) -> LoadedModel:
    """A folder that `import_hf` reads, without transformers. Raises UserError where it is damaged."""
    check_tokenizer(path)
    device = usual_device(device)
    imported, tokenizer_path = import_hf(path), path / TOKENIZER
    tokenizer = JsonTokenizer(str(tokenizer_path), read_text(tokenizer_path), str(tokenizer_path), imported.eos)
    check_known(tokenizer, imported.config.vocab_size)
    model = build(imported.config, seed=0, device=device)
    model.set_weights(imported.take_weights())
    tokenizer = tokenizer.as_pretrained(imported.token_ids)
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
    fields, files = read_fields(path), set(tensor_files(path).values())
    for key, _ in fields.entries("_attn_implementation|configuration_files|transformers_weights"):
        raise UserError(f"{fields.where}: {key}: is not read, because it may name code or other files; leave it out")
    for key in ("max_position_embeddings", "n_positions"):
        if fields.get(key) is not None:
            fields.size(key, most=MOST_POSITIONS)
    device = usual_device(device)
    with blamed_on(path):
        _check_memory(transformers, path, fields, sum(file.stat().st_size for file in files))
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
    ids = [config.eos_token_id for config in (model.generation_config, model.config)]
    ends = next((index for index in ids if index is not None), [])
    eos = token_named(definition, ends, str(path / TOKENIZER))
    tokenizer = JsonTokenizer(str(path / TOKENIZER), definition, str(path / TOKENIZER), eos)
    check_known(tokenizer, model.get_input_embeddings().num_embeddings)
    tokenizer = tokenizer.as_pretrained({"eos_token_id": ends})
    return LoadedModel(path, model, tokenizer, device, getattr(model.config, "max_position_embeddings", None))


def _check_memory(transformers: Any, path: Path, fields: Fields, n_bytes: int) -> None:
    """Raise UserError for a config of more weights than the files hold, which transformers would make up first.

    n_bytes: of the files; a weight takes at least one, and if quantised an eighth.
    """
    with torch.device("meta"):
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        model = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    n_weights = sum(parameter.numel() for parameter in model.parameters())
    if n_weights > n_bytes * (1 if fields.get("quantization_config") is None else 8):
        raise UserError(f"{path}: {CONFIG} asks for {n_weights:,} weights; the files hold only {n_bytes:,} bytes")
    if (n_buffered := sum(buffer.nbytes for buffer in model.buffers())) > MOST_BUFFERED:
        raise UserError(f"{path}: {CONFIG} asks for buffers of {n_buffered:,} bytes; allowed: up to {MOST_BUFFERED:,}")
