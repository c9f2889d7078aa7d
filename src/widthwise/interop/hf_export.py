"""A config of ours and weights by our names -> a Hugging Face folder."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from widthwise.config_io import UserError
from widthwise.files import as_readable_as_others, check_free, fsync_file, new_folder, write_atomic
from widthwise.interop.architecture import Architecture, HFTensor
from widthwise.interop.architectures import WIDTHWISE, architecture_of
from widthwise.interop.fields import Fields
from widthwise.interop.fit import check_fit
from widthwise.interop.hf_import import CONFIG, GENERATION_CONFIG, TOKEN_IDS, TOKENIZER, read_config
from widthwise.interop.tensor_folder import ONE_FILE
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
