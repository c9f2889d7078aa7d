"""Small models of ours that no other format says, with weights that are all different from their start."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_models import VOCAB_SIZE
from torch import Tensor

from widthwise.config_io import parse
from widthwise.interop.hf_export import Surroundings, export_hf
from widthwise.interop.widthwise_code import AUTO_MAP, model_code
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder, build
from widthwise.shape.template import ModelTemplate

transformers = pytest.importorskip("transformers", reason="needs the extra [hf]")

N_POSITIONS = 64
PLAIN = Surroundings(N_POSITIONS, {"eos_token_id": None})
X: dict[str, Any] = {"kind": "x", "bottleneck_layer": 0.5, "bottleneck_width": 0.5, "quantum": 6}
GROUPED: dict[str, Any] = {"head_dim": 6, "kv_group_size": 2, "qk_norm": {"over": "head"}}
SHAPED: dict[str, Any] = {"shape": {**X, "quantum": 12}, "attention": GROUPED}

MODELS: dict[str, dict[str, Any]] = {
    "slim": {"shape": X, "attention": {"head_dim": 6}},
    "slim_grouped": SHAPED,
}
"""Name -> what its recipe says of the model."""


def config_of(name: str) -> ModelConfig:
    data = {"vocab_size": VOCAB_SIZE, "d_model": 36, "n_layers": 5, "ffn": {"kind": "swiglu", "ratio": 1.5}}
    return parse(ModelTemplate, {**data, **MODELS[name]}).resolve(seq_len=16)


def own_model(config: ModelConfig, dtype: torch.dtype = torch.float32) -> Decoder:
    """Gains, biases and coefficients are not what they start at either."""
    model = build(config, seed=3, dtype=dtype)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.15 * torch.randn(parameter.shape, generator=generator, dtype=torch.float32).to(dtype)
    return model.eval()


def written(model: Decoder, folder: Path, surroundings: Surroundings = PLAIN) -> Path:
    dtype = model.embedding.weight.dtype
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    assert export_hf(model.config, weights, folder, surroundings, dtype, own=True) == "widthwise"
    return folder


def loaded(folder: Path, **options: Any) -> Any:
    """By transformers, which knows it from the package."""
    import widthwise.hf  # noqa: F401

    model, found = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **options)
    assert not any(found.values()), found
    return model.eval()


def prompts() -> list[list[int]]:
    """Of three lengths."""
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(0, VOCAB_SIZE, (n,), generator=generator).tolist() for n in (7, 3, 5)]


def left_padded(texts: list[list[int]]) -> dict[str, Tensor]:
    """As a tokenizer gives them to `generate`."""
    longest = max(map(len, texts))
    return {
        "input_ids": torch.tensor([[0] * (longest - len(text)) + text for text in texts]),
        "attention_mask": torch.tensor([[0] * (longest - len(text)) + [1] * len(text) for text in texts]),
    }


def standalone(model: Decoder, folder: Path) -> Path:
    """With its code."""
    return written(model, folder, replace(PLAIN, model_keys=AUTO_MAP, texts=model_code()))
