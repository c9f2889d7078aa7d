"""Small models of transformers with random weights, one for each way a family comes."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from widthwise.model.config import ModelConfig
from widthwise.model.decoder import Decoder, build

transformers = pytest.importorskip("transformers", reason="needs the extra [hf]")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

VOCAB_SIZE = 61
N_TOKENS = 13
TOLERANCE = 2e-6
"""How far logits of size 1 may lie apart: norms, rotation and softmax of transformers are in fp32 for any weights."""

SPECIAL = {"bos_token_id": 3, "eos_token_id": 5, "pad_token_id": None}
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 37,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
    **SPECIAL,
}
GPT2_SIZES: dict[str, Any] = {"vocab_size": VOCAB_SIZE, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 29}
GPT2_SIZES |= SPECIAL
LLAMA3_RULE = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 40,
}
PLAIN_RULE = {"rope_type": "default", "rope_theta": 700.0}
YARN_RULE = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 30}
LINEAR_RULE = {"rope_type": "linear", "rope_theta": 1000.0, "factor": 2.5}

MULTIPLIERS = {"embedding_multiplier": 3.0, "logits_scaling": 1.7, "residual_multiplier": 0.3}
MULTIPLIERS |= {"attention_multiplier": 0.4}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 11}
EXPERTS |= {"norm_topk_prob": True, "mlp_only_layers": [1]}

WINDOWS = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}

TIED = {"tie_word_embeddings": True}
BIASED = {**TIED, "attention_bias": True}
UNTIED_BIASED = {"tie_word_embeddings": False, "attention_bias": True}


def of(kind: str, **options: Any) -> tuple[str, dict[str, Any]]:
    """A config class of transformers and its options."""
    return f"{kind}Config", {**(GPT2_SIZES if kind == "GPT2" else SIZES), **options}


ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]
OLMO3_RULES = {"full_attention": YARN_RULE, "sliding_attention": PLAIN_RULE}
GEMMA3_RULES = {"full_attention": LINEAR_RULE, "sliding_attention": PLAIN_RULE}
NO_CAPS = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
CAPS = {"attn_logit_softcapping": 0.7, "final_logit_softcapping": 1.3}
SWITCHED = {"use_sliding_window": True, "sliding_window": 4}

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": of("Llama", head_dim=10),
    "llama_tied_biased": of("Llama", **BIASED, rms_norm_eps=1e-5),
    "llama_linear": of("Llama", rope_parameters=LINEAR_RULE),
    "llama_llama3": of("Llama", rope_parameters=LLAMA3_RULE, head_dim=16),
    "llama_yarn": of("Llama", rope_parameters=YARN_RULE, head_dim=16),
    "qwen2": of("Qwen2"),
    "qwen3": of("Qwen3", head_dim=8),
    "qwen3_tied_biased": of("Qwen3", **BIASED, head_dim=6),
    "olmo2": of("Olmo2"),
    "olmo2_tied": of("Olmo2", **TIED),
    "olmo3": of("Olmo3", **WINDOWS, rope_parameters=OLMO3_RULES),
    "olmo3_plain": of("Olmo3", num_hidden_layers=5, sliding_window=3, rope_parameters=None, num_key_value_heads=None),
    "mistral": of("Mistral", head_dim=10, sliding_window=None),
    "mistral_window": of("Mistral", sliding_window=5),
    "ministral": of("Ministral", **WINDOWS, head_dim=10),
    "qwen2_window": of("Qwen2", **WINDOWS, use_sliding_window=True),
    "qwen3_window": of("Qwen3", **SWITCHED, max_window_layers=1),
    "smollm3_window": of("SmolLM3", num_hidden_layers=5, use_sliding_window=True, sliding_window=3),
    "mixtral_window": of("Mixtral", num_local_experts=3, sliding_window=6),
    "phi3": of("Phi3", sliding_window=7),
    "granite": of("Granite", **BIASED, **MULTIPLIERS),
    "smollm3": of("SmolLM3", num_hidden_layers=5),
    "gemma3": of(
        "Gemma3Text",
        **{**WINDOWS, "layer_types": ALTERNATING},
        **{"num_hidden_layers": 3, "head_dim": 10, "query_pre_attn_scalar": 13, "rope_parameters": GEMMA3_RULES},
    ),
    "gemma3_plain": of("Gemma3Text", num_hidden_layers=7, sliding_window=3, rope_parameters=None, **UNTIED_BIASED),
    "gemma3_capped": of("Gemma3Text", head_dim=10, sliding_window=3, rope_parameters=None, final_logit_softcapping=0.9),
    "gemma2": of("Gemma2", **CAPS, num_hidden_layers=3, head_dim=10, query_pre_attn_scalar=13, sliding_window=4),
    "gemma2_plain": of("Gemma2", rope_parameters=None, **UNTIED_BIASED),
    "gemma2_uncapped": of(
        "Gemma2", **NO_CAPS, layer_types=ALTERNATING[1:], sliding_window=3, rope_parameters=LINEAR_RULE
    ),
    "mixtral": of("Mixtral", num_local_experts=5),
    "qwen3_moe": of("Qwen3Moe", **EXPERTS, head_dim=6, num_hidden_layers=3),
    "qwen3_moe_unnormalised": of("Qwen3Moe", **{**EXPERTS, "norm_topk_prob": False}),
    "qwen2_moe": of("Qwen2Moe", **EXPERTS, num_hidden_layers=3, shared_expert_intermediate_size=17),
    "qwen2_moe_window": of(
        "Qwen2Moe",
        **{**EXPERTS, **SWITCHED, "norm_topk_prob": False, "max_window_layers": 2},
        **{"num_hidden_layers": 4, "shared_expert_intermediate_size": 9},
    ),
    "olmoe": of("Olmoe", num_experts=5, num_experts_per_tok=3),
    "gpt2": of("GPT2", n_inner=50),
    "gpt2_untied": of("GPT2", tie_word_embeddings=False, activation_function="gelu"),
    "gpt2_scaled_by_layer": of("GPT2", scale_attn_by_inverse_layer_idx=True),
}
"""Name -> class of transformers and its options."""


def hf_model(name: str) -> Any:
    """A model of CONFIGS in fp32."""
    return built(*CONFIGS[name])


def built(kind: str, options: dict[str, Any], spread: float = 0.15, attention: str | None = None) -> Any:
    """A model in fp32, whose norms, biases and matrices all differ from what they started as.

    spread: deviation of biases and matrices.
    """
    config = getattr(transformers, kind)(**copy.deepcopy(options))
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            is_gain = parameter.dim() == 1 and key.endswith("weight")
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
            parameter.copy_(parameter + 0.2 * drawn if is_gain else spread * drawn)
    return model.eval()


def hf_folder(path: Path, name: str, **save: Any) -> Path:
    """The same, saved."""
    hf_model(name).save_pretrained(path, **save)
    return path


def tokens() -> Tensor:
    return torch.randint(0, VOCAB_SIZE, (2, N_TOKENS), generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def hf_logits(model: Any) -> Tensor:
    """In fp64, of a model of transformers or of what a folder loads as."""
    if isinstance(model, Path):
        model, loading = transformers.AutoModelForCausalLM.from_pretrained(model, output_loading_info=True)
        assert not any(loading.values()), loading
    model.set_experts_implementation("eager")  # the only one in fp64
    return model.double().eval()(tokens()).logits


def assert_close(found: Tensor, expected: Tensor, tolerance: float = 1e-5, what: str = "") -> None:
    """Relative to the largest, if that is more than 1."""
    atol = tolerance * max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found, expected, rtol=0, atol=atol, msg=lambda message: f"{what}: {message}")


def weights_of(model: Decoder) -> dict[str, Tensor]:
    """By our names, tied ones once."""
    return {name: weight.detach() for name, weight in model.named_parameters()}


@torch.no_grad()
def own_logits(config: ModelConfig, weights: dict[str, Tensor]) -> Tensor:
    """In fp64."""
    model = build(config, seed=0, dtype=torch.float64)
    model.set_weights(weights.items())
    return model.eval()(tokens())
