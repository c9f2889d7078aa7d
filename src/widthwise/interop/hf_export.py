"""A config of ours and weights by our names -> a Hugging Face folder."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from widthwise.config_io import UserError, differences, to_data
from widthwise.files import as_readable_as_others, check_free, fsync_file, new_folder, write_atomic
from widthwise.interop.architecture import Architecture, Fields
from widthwise.interop.families import family_of
from widthwise.interop.hf_import import (
    CONFIG,
    GENERATION,
    ONE_FILE,
    TOKEN_IDS,
    TOKENIZER,
    TOKENIZER_CONFIG,
    WIDTHWISE,
    read_config,
)
from widthwise.model.config import ModelConfig


@dataclass(frozen=True)
class Surroundings:
    """Contents of a folder besides the model."""

    n_positions: int
    """The longest context in tokens."""
    token_ids: Mapping[str, int | list[int]] = field(default_factory=dict)
    """Special tokens; see `ImportedModel.token_ids`."""
    tokenizer: str | None = None
    """The content of tokenizer.json."""
    eos: str | None = None
    """The end-of-text token as that file spells it."""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Further keys of TOKENIZER_CONFIG and GENERATION, as `ImportedModel.settings`."""
    model_keys: Mapping[str, Any] = field(default_factory=dict)
    """Further keys of config.json, also instead of `token_ids`."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Further files: name -> content."""


def hf_config(config: ModelConfig, n_positions: int, own: bool = False) -> tuple[Architecture, dict[str, Any]]:
    """Return the architecture that a model can be written as, and its config.json.

    own: as `widthwise`, which transformers knows after `import widthwise.hf`; otherwise as one that it always knows,
    for which the model must be in the format's own parametrisation (`growth.bake`). Raises UserError with the reason
    if the format cannot express the model.
    """
    architecture = WIDTHWISE if own else family_of(config)
    written = architecture.write(config, n_positions)
    fields = Fields(written, architecture.model_type)
    read_back = read_config(architecture, fields)
    check_fit(config, read_back, architecture.model_type)
    architecture.check_written(fields)
    return architecture, written


TOLERANCE = 1e-12
"""Relative difference below which two numbers are equal."""
REASONS = {
    "v_head_dim": "it has one head size for queries, keys and values, so that head_dim and v_head_dim grow together",
    **dict.fromkeys(("norm_dim", "q_norm_dim", "k_norm_dim"), "its norms divide by the width they cover"),
    "stat_width": "its norms measure all they cover",
    "output_multiplier": "its norms have no factor of their own; the format `widthwise` has",
    "scale": "its scores have one factor, 1/sqrt(head_dim)",
    "eps": "it has one eps for all norms",
    "residual": "it has one stream, to which every update is added",
    "mtp": "it has no place for further heads",
    **dict.fromkeys(("d_in", "d_out", "d_model"), "every layer is as wide as the embedding"),
    "d_ff": "one number stands for all layers",
    "n_heads": "one number stands for all layers, and in gpt2 n_heads * head_dim is the width",
    "n_kv_heads": "one number stands for all layers, and in gpt2 it is n_heads",
    "head_dim": "one number stands for all layers, and in gpt2 n_heads * head_dim is the width",
    "rope_frequencies": "it turns queries and keys, those of all layers alike",
}


def check_fit(config: ModelConfig, read_back: ModelConfig, model_type: str) -> None:
    """Raise UserError for the first difference between a model and what its format expresses, with the reason."""
    if config.widths != read_back.widths:
        listing = ", ".join(map(str, sorted({config.d_model, *config.widths})))
        raise UserError(f"{model_type.capitalize()} cannot describe layers of different widths ({listing})")
    found = [
        (path, ours, theirs)
        for path, ours, theirs in differences(_comparable(config), _comparable(read_back))
        if not (isinstance(ours, float) and isinstance(theirs, float) and math.isclose(ours, theirs, rel_tol=TOLERANCE))
    ]
    if not found:
        return
    # Of two components of different kinds all fields may differ, but only the kind matters.
    kinds = (each for each in found if each[0].endswith(".kind") and found[0][0].startswith(each[0][: -len("kind")]))
    path, ours, theirs = next(kinds, found[0])
    texts = ["null" if value is None else str(value) for value in (ours, theirs)]
    got, has = (text if len(text) <= 60 else text[:57] + "..." for text in texts)
    message = f"{path}: got {got}; {model_type} has {has} there"
    if isinstance(ours, dict) and theirs is None:
        message = f"{path}: the model has it, {model_type} has none"
    elif isinstance(theirs, dict) and ours is None:
        message = f"{path}: the model has none, {model_type} has it"
    reason = next((REASONS[key] for key in reversed(path.split(".")) if key in REASONS), None)
    raise UserError(message + (f", because {reason}" if reason else ""))


def _comparable(config: ModelConfig) -> dict[str, Any]:
    """Return plain data in which equal models are equal: defaults written out, without the initialisation."""
    data = to_data(config)
    del data["init"]
    for layer, written in zip(config.layers, data["layers"]):
        attention, norm, entry = layer.attention, layer.attention.qk_norm, written["attention"]
        entry["v_head_dim"] = attention.value_dim
        if attention.rope is not None:
            del entry["rope_base"]  # only a way to give the frequencies
            entry["rope_frequencies"] = list(attention.rope.pair_frequencies)
        if norm is not None:
            n_heads = (1, 1) if norm.over == "head" else (attention.n_heads, attention.n_kv_heads)
            entry["qk_norm"]["q_norm_dim"] = norm.q_norm_dim or n_heads[0] * attention.head_dim
            entry["qk_norm"]["k_norm_dim"] = norm.k_norm_dim or n_heads[1] * attention.head_dim
    return data


def export_hf(
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    folder: Path | str,
    surroundings: Surroundings,
    dtype: torch.dtype = torch.float32,
    own: bool = False,
) -> str:
    """Write the folder, whole or not at all, and return its model_type.

    config, own: as in `hf_config`; weights: by our names, of tied ones once. Raises UserError for a used folder.
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
    written = {**head, **written, **token_ids, **surroundings.model_keys, "use_cache": True}
    settings = surroundings.settings
    ids = {key: value for key, value in token_ids.items() if value is not None}
    generation = {**settings.get(GENERATION, {}), **ids}
    texts = {CONFIG: _json(written), GENERATION: _json(generation), **surroundings.texts}
    if surroundings.tokenizer is not None:
        # Names the class, which transformers would guess by the model_type and which might split text otherwise.
        tokenizer_config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": surroundings.n_positions,
            "clean_up_tokenization_spaces": False,
            "model_input_names": ["input_ids", "attention_mask"],
            **({} if surroundings.eos is None else {"eos_token": surroundings.eos}),
            **settings.get(TOKENIZER_CONFIG, {}),
        }
        texts |= {TOKENIZER: surroundings.tokenizer, TOKENIZER_CONFIG: _json(tokenizer_config)}
    tensors = {}
    for tensor in architecture.tensors(config):
        rows = torch.cat([weights[part] for part in tensor.parts])
        if rows.abs().max() > torch.finfo(dtype).max:
            raise UserError(
                f"{tensor.name}: has a weight of {float(rows.abs().max()):g}, which {type_name} cannot hold"
            )
        tensors[tensor.name] = (rows.T if tensor.is_transposed else rows).to(dtype).contiguous()
    with new_folder(folder) as partial:
        for name, text in texts.items():
            write_atomic(partial / name, text)
        try:
            with as_readable_as_others(partial / ONE_FILE):
                save_file(tensors, partial / ONE_FILE, metadata={"format": "pt"})
        except SafetensorError as error:
            raise UserError(f"{folder}: cannot be written ({error})") from None
        fsync_file(partial / ONE_FILE)
    return architecture.model_type


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2) + "\n"
