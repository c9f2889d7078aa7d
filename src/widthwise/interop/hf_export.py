"""A config of ours and weights by our names -> a Hugging Face folder."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from widthwise.config_io import UserError, to_data
from widthwise.files import as_readable_as_others, check_free, fsync_file, new_folder, write_atomic
from widthwise.interop.architecture import Architecture, Fields, HFTensor
from widthwise.interop.hf_import import (
    CONFIG,
    GENERATION_CONFIG,
    ONE_FILE,
    TOKEN_IDS,
    TOKENIZER,
    WIDTHWISE,
    architecture_of,
    read_config,
)
from widthwise.model.attention import AttentionConfig
from widthwise.model.config import ModelConfig

TOKENIZER_CONFIG = "tokenizer_config.json"


@dataclass(frozen=True)
class Surroundings:
    """What a folder holds besides the model."""

    n_positions: int
    """The longest context in tokens."""
    token_ids: Mapping[str, int | list[int]] = field(default_factory=dict)
    """Special tokens; see `Imported.token_ids`."""
    tokenizer: str | None = None
    """The content of tokenizer.json."""
    eos: str | None = None
    """The end-of-text token as that file spells it."""
    model_keys: Mapping[str, Any] = field(default_factory=dict)
    """Further keys of config.json."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Further files: name -> content."""


def hf_config(config: ModelConfig, n_positions: int, own: bool = False) -> tuple[Architecture, dict[str, Any]]:
    """The architecture a model can be written as, and what its config.json says of the model.

    own: as `widthwise`, which transformers knows after `import widthwise.hf`; otherwise as one that it always knows,
    for which the model must be in the format's own parametrisation (`growth.bake`). Raises UserError with the reason
    where the format does not say all of it.
    """
    architecture = WIDTHWISE if own else architecture_of(config)
    written = architecture.write(config, n_positions)
    fields = Fields(written, architecture.model_type)
    read_back = read_config(architecture, fields)
    check_fit(config, read_back, architecture.model_type)
    architecture.check_written(fields)
    return architecture, written


TOLERANCE = 1e-12
"""Relative; of two numbers that are one."""


REASONS = {
    "v_head_dim": "it has one head size for queries, keys and values, so that head_dim and v_head_dim grow together",
    "norm_dim": "its norms divide by the width they cover",
    "q_norm_dim": "its norms divide by the width they cover",
    "k_norm_dim": "its norms divide by the width they cover",
    "stat_width": "its norms measure all they cover",
    "output_multiplier": "its norms have no factor of their own; the format `widthwise` has",
    "scale": "its scores have one factor, 1/sqrt(head_dim)",
    "eps": "it has one eps for all norms",
    "residual": "it has one stream, to which every update is added",
    "mtp": "it has no place for further heads",
    "d_in": "every layer is as wide as the embedding",
    "d_out": "every layer is as wide as the embedding",
    "d_model": "every layer is as wide as the embedding",
    "d_ff": "one number stands for all layers",
    "n_heads": "one number stands for all layers, and in gpt2 n_heads * head_dim is the width",
    "n_kv_heads": "one number stands for all layers, and in gpt2 it is n_heads",
    "head_dim": "one number stands for all layers, and in gpt2 n_heads * head_dim is the width",
    "rope_frequencies": "it turns queries and keys, those of all layers alike",
}


class Difference(NamedTuple):
    """The first place where two configs are not one."""

    path: tuple[str, ...]
    ours: Any
    theirs: Any


def check_fit(config: ModelConfig, read_back: ModelConfig, model_type: str) -> None:
    """Raises UserError with the reason where a format says less than the model is."""
    found = _difference(_comparable(config), _comparable(read_back))
    if found is None:
        return
    reason = next((REASONS[key] for key in reversed(found.path) if key in REASONS), None)
    raise UserError(_in_words(found, model_type) + (f", because {reason}" if reason else ""))


def _comparable(config: ModelConfig) -> dict[str, Any]:
    """As plain data in which equal models are equal; without what only new weights are drawn from."""
    data = to_data(config)
    del data["init"]
    for layer, said in zip(config.layers, data["layers"]):
        said["attention"] = _attention(layer.attention, said["attention"])
    return data


def _attention(attention: AttentionConfig, said: dict[str, Any]) -> dict[str, Any]:
    """With every null that stands for a number as that number."""
    said = {**said, "v_head_dim": attention.value_dim}
    if attention.rope is not None:
        del said["rope_base"]  # only a way to say the frequencies
        said["rope_frequencies"] = list(attention.rope.pair_frequencies)
    norm = attention.qk_norm
    if norm is not None:
        n_heads = (1, 1) if norm.over == "head" else (attention.n_heads, attention.n_kv_heads)
        dims = {
            "q_norm_dim": norm.q_norm_dim or n_heads[0] * attention.head_dim,
            "k_norm_dim": norm.k_norm_dim or n_heads[1] * attention.head_dim,
        }
        said["qk_norm"] = {**said["qk_norm"], **dims}
    return said


def _difference(ours: Any, theirs: Any, path: tuple[str, ...] = ()) -> Difference | None:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        if ours.get("kind") != theirs.get("kind"):
            return Difference((*path, "kind"), ours.get("kind"), theirs.get("kind"))
        pairs = [(key, ours.get(key), theirs.get(key)) for key in ours | theirs]
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = [(str(i), *pair) for i, pair in enumerate(zip(ours, theirs))]
    else:
        return None if _are_equal(ours, theirs) else Difference(path, ours, theirs)
    found = (_difference(a, b, (*path, key)) for key, a, b in pairs)
    return next((difference for difference in found if difference is not None), None)


def _are_equal(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=TOLERANCE)
    return ours == theirs


def _in_words(found: Difference, model_type: str) -> str:
    """What a format has in the place where the model has something else."""
    path = ".".join(found.path)
    if isinstance(found.ours, dict) and found.theirs is None:
        return f"{path}: the model has it, {model_type} has none"
    if isinstance(found.theirs, dict) and found.ours is None:
        return f"{path}: the model has none, {model_type} has it"
    return f"{path}: got {_short(found.ours)}; {model_type} has {_short(found.theirs)} there"


def _short(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def export_hf(
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    folder: Path | str,
    surroundings: Surroundings,
    dtype: torch.dtype = torch.float32,
    own: bool = False,
) -> str:
    """Writes the folder, whole or not at all, and returns its model_type. For the config and `own` see `hf_config`.

    weights: by our names, of tied ones once. Raises UserError where the folder holds something already.
    """
    folder = Path(folder)
    architecture, written = hf_config(config, surroundings.n_positions, own)
    check_free(folder)
    token_ids = {key: surroundings.token_ids.get(key) for key in TOKEN_IDS}
    type_name = str(dtype).removeprefix("torch.")
    head = {
        "architectures": [architecture.class_name],
        "model_type": architecture.model_type,
        "dtype": type_name,
        "torch_dtype": type_name,  # its name before transformers 5
    }
    texts = {
        CONFIG: {**head, **surroundings.model_keys, **written, **token_ids, "use_cache": True},
        GENERATION_CONFIG: {key: value for key, value in token_ids.items() if value is not None},
    }
    tensors = {tensor.name: _joined(tensor, weights, dtype) for tensor in architecture.tensors(config)}
    _write(folder, texts, tensors, surroundings)
    return architecture.model_type


def _joined(tensor: HFTensor, weights: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    rows = torch.cat([weights[part] for part in tensor.parts])
    return (rows.T if tensor.is_transposed else rows).to(dtype).contiguous()


def _write(
    folder: Path, texts: Mapping[str, Mapping[str, Any]], tensors: dict[str, Tensor], surroundings: Surroundings
) -> None:
    with new_folder(folder) as partial:
        for name, content in texts.items():
            write_atomic(partial / name, json.dumps(content, indent=2) + "\n")
        for name, text in surroundings.texts.items():
            write_atomic(partial / name, text)
        if surroundings.tokenizer is not None:
            write_atomic(partial / TOKENIZER, surroundings.tokenizer)
            write_atomic(partial / TOKENIZER_CONFIG, json.dumps(_tokenizer_config(surroundings), indent=2) + "\n")
        try:
            with as_readable_as_others(partial / ONE_FILE):
                save_file(tensors, partial / ONE_FILE, metadata={"format": "pt"})
        except SafetensorError as error:
            raise UserError(f"{folder}: cannot be written ({error})") from None
        fsync_file(partial / ONE_FILE)


def _tokenizer_config(surroundings: Surroundings) -> dict[str, Any]:
    """Without it transformers would guess a class by the model_type, which may split text otherwise."""
    special = {} if surroundings.eos is None else {"eos_token": surroundings.eos}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": surroundings.n_positions,
        "clean_up_tokenization_spaces": False,
        **special,
    }
