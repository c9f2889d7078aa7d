"""Small models of ours that no other format says, with weights that are all different from their start."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from hf_models import VOCAB_SIZE, assert_close, transformers, weights_of
from torch import Tensor

from widthwise.config_io import parse, to_data
from widthwise.interop.hf_export import FolderExtras, export_hf
from widthwise.interop.widthwise_format import AUTO_MAP, model_code
from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder, build
from widthwise.model.generate import pad_left
from widthwise.shape.template import ModelTemplate

N_POSITIONS = 64
PLAIN = FolderExtras(N_POSITIONS, {"eos_token_id": None})


def models(head_dim: int) -> dict[str, dict[str, Any]]:
    """Name -> what its recipe says of the model, with heads of head_dim."""
    x = {"kind": "x", "bottleneck_layer": 0.5, "bottleneck_width": 0.5, "quantum": head_dim}
    grouped = {"head_dim": head_dim, "kv_group_size": 2, "qk_norm": {"over": "head"}}
    shaped: dict[str, Any] = {"shape": {**x, "quantum": 2 * head_dim}, "attention": grouped}
    full = {"shape": {**x, "endpoints": "full"}, "attention": {"head_dim": head_dim}}

    def plain(**said: Any) -> dict[str, Any]:
        return {"residual": {"kind": "plain", **said}}

    def ffn(kind: str, **said: Any) -> dict[str, Any]:
        return {"attention": grouped, "ffn": {"kind": kind, **said}}

    def slots(n_slots: int, **said: Any) -> dict[str, Any]:
        return {"attention": grouped, "residual": {"kind": "hyper_connections", "n_slots": n_slots, **said}}

    def manifold(n_slots: int, **said: Any) -> dict[str, Any]:
        return {"attention": grouped, "residual": {"kind": "manifold", "n_slots": n_slots, **said}}

    multipliers = {"tie_embeddings": True, "embedding_multiplier": 1.5, "logit_multiplier": 0.6}
    static = {"dynamic": False, "n_fractions": 3, "group_norm": "layer", "multiplier": 0.9}
    in_turn = {"n_fractions": 3, "writes": "own", "scale": "numbers", "read_init": "in_turn"}
    hard = {"kind": "hard"}
    return {
        "slim": {"shape": x, "attention": {"head_dim": head_dim}},
        "slim_grouped": shaped,
        "full": full,
        "zero": {"shape": x, "attention": {"head_dim": head_dim}, **plain(resize="zero")},
        "projection": {**full, **plain(resize="projection", multiplier=0.7), **multipliers},
        "full_projection": {**full, **plain(resize="full_projection")},
        "reordered": {
            **shaped,
            "norm": {"placement": "reordered"},
            "attention": {**grouped, "qk_norm": {"over": "all_heads"}},
        },
        "between_norms": {
            **shaped,
            "norm": {"placement": "both", "gain_offset": 1.0},
            "attention": {**grouped, "qk_norm": {"over": "head", "gain_offset": 1.0}},
            "ffn": {"kind": "mlp", "activation": "gelu_tanh", "gated": True, "ratio": 1.5},
        },
        "capped": {
            **shaped,
            "attention": {**grouped, "score_cap": 0.7, "window": 4},
            "layers": {1: {"attention": {"window": None, "score_cap": 0.3, "v_head_dim": 8}}},
            "mtp": {"n_depths": 1},
            "logit_multiplier": 1.7,
            "logit_cap": 0.9,
        },
        "layer_norms_before_and_after": {**shaped, "norm": {"kind": "layer", "placement": "both"}},
        "layer_norm": {
            "shape": x,
            "norm": {"kind": "layer"},
            "attention": {"n_heads": 3, "rope_base": None, "bias": True, "out_bias": True},
            "ffn": {"kind": "mlp", "activation": "gelu_tanh", "bias": True},
            "positions": {"n_positions": N_POSITIONS},
        },
        "hourglass": {**shaped, **ffn("hourglass", n_blocks=3, ratio=0.6)},
        "hourglass_reordered": {**shaped, **ffn("hourglass", n_blocks=2), "norm": {"placement": "reordered"}},
        "hourglass_between_norms": {**shaped, **ffn("hourglass", n_blocks=2), "norm": {"placement": "both"}},
        "profile": {"shape": {"kind": "profile", "heads": [1, 2, 1], "hidden": [0.5, 1.5]}, "attention": grouped},
        "moe": {**shaped, **ffn("moe", n_experts=5, top_k=2, n_shared_experts=1)},
        "moe_gated": {**shaped, **ffn("moe", n_experts=3, top_k=1, n_shared_experts=1, gated_shared=True)},
        "moe_unnormalised": {**shaped, **ffn("moe", n_experts=5, top_k=2, normalised=False)},
        "slots": {**shaped, **slots(6, slot_width=2 * head_dim, group_norm="rms")},
        "slots_static": slots(6, embedding="slot", reduce="slot", **static),
        "slots_expanded": {**slots(2, embedding="expand"), "tie_embeddings": True},
        "slots_in_turn": slots(6, embedding="copies", reduce="sum", **in_turn),
        "manifold": manifold(4, coefficient_eps=0.01, multiplier=0.9),
        "manifold_permutations": {**manifold(3, carry="permutations"), "tie_embeddings": True},
        "dynamic": {**shaped, **ffn("dynamic", ratio=1.5)},
        "dynamic_sliced": {**shaped, **ffn("dynamic", execution="sliced", mask=hard)},
        "dynamic_soft": ffn("dynamic", score={"kind": "raw_mean"}, mask={"kind": "soft"}),
        "mtp": {**shaped, "mtp": {"n_depths": 2}},
        "windows": {**shaped, "attention": {**grouped, "window": 4}, "layers": {1: {"attention": {"window": None}}}},
    }


HEAD_DIM = 6
MODELS = models(HEAD_DIM)
X = MODELS["slim"]["shape"]


def keep_constants(layer: dict[str, Any]) -> None:
    """Those that a layer keeps when it grows."""
    head_dim = layer["attention"]["head_dim"]
    layer["attention_norm"]["norm_dim"] -= 5
    layer["ffn_norm"] |= {"stat_width": layer["d_model"] - 3, "eps": 2e-4}
    layer["attention"] |= {"scale": 0.3, "rope_frequencies": [0.7**i for i in range(head_dim // 2)]}
    layer["attention"]["qk_norm"] |= {"q_norm_dim": head_dim - 2, "k_norm_dim": head_dim - 1}


def _frozen(layer: dict[str, Any]) -> None:
    keep_constants(layer)
    layer["attention"]["v_head_dim"] = 10


def _inserted(layer: dict[str, Any]) -> None:
    """Hidden units that came in two growths."""
    d_ff = layer["ffn"]["d_ff"]
    layer["ffn"]["grown_from"] = [d_ff - 11, d_ff - 4]


GROWN: dict[str, tuple[str, Callable[[dict[str, Any]], None]]] = {
    "frozen": ("slim_grouped", _frozen),
    "frozen_slots": ("slots", _frozen),
    "inserted": ("dynamic_sliced", _inserted),
}
"""Name -> the model that grew, and what its layers have from there."""
NAMES = (*MODELS, *GROWN)


def config_of(name: str) -> ModelConfig:
    if name in GROWN:
        source, change = GROWN[name]
        grown = to_data(config_of(source))
        for layer in grown["layers"]:
            change(layer)
        return parse(ModelConfig, grown)
    return sized(name, HEAD_DIM, d_model=36)


def sized(name: str, head_dim: int, d_model: int, **said: Any) -> ModelConfig:
    """One of `models`; said: sections that it has instead of those of `models`, or besides."""
    data = {"vocab_size": VOCAB_SIZE, "d_model": d_model, "n_layers": 5, "ffn": {"kind": "swiglu", "ratio": 1.5}}
    return parse(ModelTemplate, {**data, **models(head_dim)[name], **said}).resolve(seq_len=16)


def own_model(config: ModelConfig, dtype: torch.dtype = torch.float32, spread: float = 0.15) -> Decoder:
    """Gains, biases and coefficients are not what they start at either."""
    model = build(config, seed=3, dtype=dtype)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += spread * torch.randn(parameter.shape, generator=generator, dtype=torch.float32).to(dtype)
    return model.eval()


def written(model: Decoder, folder: Path, extras: FolderExtras = PLAIN) -> Path:
    dtype = model.embedding.weight.dtype
    export_hf(model.config, weights_of(model), folder, extras, dtype, model_type="widthwise")
    return folder


def loaded(folder: Path, **options: Any) -> Any:
    """By transformers, which knows it from the package."""
    import widthwise.hf  # noqa: F401

    model, found = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **options)
    assert not any(found.values()), found
    return model.eval()


def prompts() -> list[list[int]]:
    """Prompts of three lengths."""
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(0, VOCAB_SIZE, (n,), generator=generator).tolist() for n in (7, 3, 5)]


def left_padded(texts: list[list[int]]) -> dict[str, Tensor]:
    """As a tokenizer gives them to `generate`."""
    input_ids, is_real = pad_left(texts, torch.device("cpu"))
    return {"input_ids": input_ids, "attention_mask": is_real.long()}


def check_padded(ours: Decoder, theirs: Any, tolerance: float = 1e-5) -> Any:
    """Logits of texts of three lengths in one batch; returns what transformers found, with its cache."""
    batch = left_padded(prompts())
    is_real = batch["attention_mask"].bool()
    found = theirs(**batch, use_cache=True)
    assert_close(found.logits[is_real], ours(batch["input_ids"], is_real=is_real)[is_real], tolerance)
    return found


def standalone(model: Decoder, folder: Path) -> Path:
    """With its code."""
    return written(model, folder, replace(PLAIN, model_keys=AUTO_MAP, texts=model_code()))
