"""Export of a model to a Hugging Face folder."""

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

from widthwise.config_io import differences, to_data
from widthwise.files import check_free, fsync, new_folder, with_default_permissions, write_atomic
from widthwise.interop.architecture import Architecture, Fields
from widthwise.interop.families import family_of
from widthwise.interop.hf_import import (
    ARCHITECTURES,
    CONFIG,
    GENERATION,
    ONE_FILE,
    TOKEN_IDS,
    TOKENIZER,
    TOKENIZER_CONFIG,
    read_config,
)
from widthwise.mistakes import UserError
from widthwise.model.config import ModelConfig


@dataclass(frozen=True)
class FolderExtras:
    """Contents of an exported folder in addition to the model's config and weights."""

    n_positions: int
    """The longest context, in tokens."""
    token_ids: Mapping[str, int | list[int]] = field(default_factory=dict)
    """Ids of the special tokens; see `ImportedModel.token_ids`."""
    tokenizer: str | None = None
    """The content of tokenizer.json."""
    eos: str | None = None
    """The text of the end-of-text token in that file."""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Further entries of TOKENIZER_CONFIG and GENERATION, as `ImportedModel.settings`."""
    model_keys: Mapping[str, Any] = field(default_factory=dict)
    """Further entries of config.json, which override `token_ids`."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Further files: name -> content."""


def hf_config(
    config: ModelConfig, n_positions: int, model_type: str | None = None, dtype: torch.dtype = torch.float32
) -> tuple[Architecture, dict[str, Any]]:
    """Return an architecture that can express a model, and its config.json.

    n_positions: longest context in tokens; model_type: of the architecture, by default the family that `family_of`
    returns (transformers knows `widthwise` after `import widthwise.hf`); dtype: of the weights, to which transformers
    may round a constant. Most families need standard constants (`growth.bake`). Raises UserError with the reason if the
    format cannot express the model.
    """
    architecture = family_of(config) if model_type is None else ARCHITECTURES[model_type]
    written = {"dtype": str(dtype).removeprefix("torch."), **architecture.write(config, n_positions)}
    fields = Fields(written, architecture.model_type)
    check_fit(config, read_config(architecture, fields), architecture.model_type)
    architecture.check_written(fields)
    return architecture, written


TOLERANCE = 1e-12
"""Relative difference below which two numbers count as equal."""
MISFIT_REASONS = {
    "v_head_dim": "it has one head size for queries, keys and values; head_dim and v_head_dim must grow together",
    **dict.fromkeys(("norm_dim", "q_norm_dim", "k_norm_dim"), "its norms divide by their width"),
    "stat_width": "its norms measure their whole width",
    "scale": "its scores have one factor, 1/sqrt(head_dim)",
    "eps": "it has one eps for all norms",
    "residual": "it has one stream, to which every update is added",
    "mtp": "it has no MTP heads",
    "embedding_multiplier": "it has none, or in a Gemma the root of d_model, rounded to the --dtype of the export",
    "window": "it has no window, or one in all layers or, in some families, in some layers",
    **dict.fromkeys(("d_in", "d_out", "d_model"), "all layers are as wide as the embedding"),
    "d_ff": "all layers have the same value",
    "n_kv_heads": "all layers have the same value, and in gpt2 it is n_heads",
    **dict.fromkeys(("n_heads", "head_dim"), "all layers have the same value, and in gpt2 their product is the width"),
    "rope_frequencies": "it rotates queries and keys, by the same frequencies in all layers",
}
"""Field of a config -> why a format cannot express every value of it."""


def check_fit(config: ModelConfig, read_back: ModelConfig, model_type: str) -> None:
    """Raise UserError with the reason for the first difference between a model and its config read back."""
    if config.widths != read_back.widths:
        listing = ", ".join(map(str, sorted({config.d_model, *config.widths})))
        raise UserError(f"{model_type} cannot describe layers of different widths ({listing})")
    misfits = {}
    for path, ours, theirs in differences(_comparable(config), _comparable(read_back)):
        are_floats = isinstance(ours, float) and isinstance(theirs, float)
        if not (are_floats and math.isclose(ours, theirs, rel_tol=TOLERANCE)):
            misfits[path] = ours, theirs
    if not misfits:
        return
    path = next(iter(misfits))
    # If a component has another kind, its other fields differ, too, but only the kind matters.
    path = next((kind for kind in misfits if kind.endswith(".kind") and path.startswith(kind[: -len("kind")])), path)
    ours, theirs = misfits[path]
    texts = ["null" if value is None else str(value) for value in (ours, theirs)]
    got, expected = (text if len(text) <= 60 else text[:57] + "..." for text in texts)
    message = f"{path}: got {got}; {model_type} has {expected} there"
    if isinstance(ours, dict) and theirs is None:
        message = f"{path}: the model has it, {model_type} has none"
    elif isinstance(theirs, dict) and ours is None:
        message = f"{path}: the model has none, {model_type} has it"
    reason = next((MISFIT_REASONS[key] for key in reversed(path.split(".")) if key in MISFIT_REASONS), None)
    raise UserError(message if reason is None else f"{message}, because {reason}")


def _comparable(config: ModelConfig) -> dict[str, Any]:
    """Return plain data that are equal for models with the same function.

    Defaults are written out; initialisation and coefficients of the objective are left out.
    """
    data = to_data(config)
    del data["init"]
    for layer, written in zip(config.layers, data["layers"]):
        for coefficient in ("balance_coefficient", "z_coefficient"):
            written["ffn"].pop(coefficient, None)
        attention = layer.attention
        entry = written["attention"]
        entry["v_head_dim"] = attention.value_dim
        if attention.rope is not None:
            del entry["rope_base"]  # the frequencies follow from it
            entry["rope_frequencies"] = list(attention.rope.pair_frequencies)
        if attention.qk_norm is not None:
            is_per_head = attention.qk_norm.over == "head"
            for name, n_heads in (("q_norm_dim", attention.n_heads), ("k_norm_dim", attention.n_kv_heads)):
                default = attention.head_dim if is_per_head else n_heads * attention.head_dim
                entry["qk_norm"][name] = getattr(attention.qk_norm, name) or default
    return data


def export_hf(
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    folder: Path | str,
    extras: FolderExtras,
    dtype: torch.dtype = torch.float32,
    model_type: str | None = None,
) -> str:
    """Write the folder atomically, and return its model_type.

    config, model_type: as in `hf_config`; weights: by our names, tied ones once. Raises UserError as `hf_config`, if
    the folder is neither missing nor empty, and for weights that the dtype cannot hold.
    """
    folder = Path(folder)
    architecture, written = hf_config(config, extras.n_positions, model_type, dtype)
    check_free(folder)
    token_ids = {key: extras.token_ids.get(key) for key in TOKEN_IDS}
    type_name = written["dtype"]
    head = {
        "architectures": [architecture.class_name],
        "model_type": architecture.model_type,
        "dtype": type_name,
        "torch_dtype": type_name,  # the name of the key before transformers 5
    }
    generation = dict(extras.settings.get(GENERATION, {}))
    generation |= {key: value for key, value in token_ids.items() if value is not None}
    written = {**head, **written, **token_ids, **extras.model_keys, "use_cache": True}
    json_files = {CONFIG: written, GENERATION: generation}
    texts = dict(extras.texts)
    if extras.tokenizer is not None:
        texts[TOKENIZER] = extras.tokenizer
        # Without a class transformers would guess it from the model_type, and might split text differently.
        json_files[TOKENIZER_CONFIG] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": extras.n_positions,
            "clean_up_tokenization_spaces": False,
            "model_input_names": ["input_ids", "attention_mask"],
            **({} if extras.eos is None else {"eos_token": extras.eos}),
            **extras.settings.get(TOKENIZER_CONFIG, {}),
        }
    texts |= {name: json.dumps(content, indent=2) + "\n" for name, content in json_files.items()}
    tensors = {}
    for tensor in architecture.tensors(config):
        rows = torch.cat([weights[part].chunk(tensor.n_blocks)[tensor.block] for part in tensor.parts])
        largest = rows.abs().max()
        if largest > torch.finfo(dtype).max:
            raise UserError(f"{tensor.name}: has weight {float(largest):g}, which {type_name} cannot hold")
        tensors[tensor.name] = (rows.T if tensor.is_transposed else rows).to(dtype).contiguous()
    with new_folder(folder) as partial:
        for name, text in texts.items():
            write_atomic(partial / name, text)
        try:
            with with_default_permissions(partial / ONE_FILE):
                save_file(tensors, partial / ONE_FILE, metadata={"format": "pt"})
        except SafetensorError as error:
            raise UserError(f"{folder}: cannot be written ({error})") from None
        fsync(partial / ONE_FILE)
    return architecture.model_type
