"""All families of transformers that can be imported and exported, and the usual family of a model.

Where two families describe one model, such as Llama and Mistral, a model keeps the family that it was imported from.
"""

from collections.abc import Mapping

from widthwise.interop.dense_families import DENSE
from widthwise.interop.family import Family
from widthwise.interop.gpt2 import GPT2
from widthwise.interop.mixture_families import MIXTURES
from widthwise.model.config import ModelConfig
from widthwise.model.ffn.moe import MoEConfig

FAMILIES: dict[str, Family] = {family.model_type: family() for family in (GPT2, *DENSE, *MIXTURES)}
"""`model_type` -> family."""

REFUSED: Mapping[str, str] = {
    "gemma3": "an image encoder",
    "gpt_oss": "learned attention sinks",
    "llama4_text": "attention in chunks",
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), "multi-head latent attention"),
    **dict.fromkeys(("cohere", "falcon"), "attention and feed-forward in parallel"),
    **dict.fromkeys(("gpt_neox", "phi"), "attention and feed-forward in parallel, and partial rotary positions"),
    **dict.fromkeys(("glm4", "stablelm"), "partial rotary positions"),
    "qwen3_next": "linear attention",
    **dict.fromkeys(("mamba", "mamba2"), "state-space layers"),
    "bloom": "positions by a bias of the scores (ALiBi)",
}
"""Well-known `model_type` -> the part that our models lack."""


def family_of(config: ModelConfig) -> Family:
    """Return the family that probably expresses a model. The caller checks this by writing and reading the config."""
    attention = config.layers[0].attention
    multipliers = (config.embedding_multiplier, config.logit_multiplier, config.residual.multiplier)
    windows = {layer.attention.window for layer in config.layers}
    mixtures = [layer.ffn for layer in config.layers if isinstance(layer.ffn, MoEConfig)]
    if config.positions is not None or config.final_norm.kind == "layer":
        name = "gpt2"
    elif config.layers[0].norm_placement == "both":
        name = "gemma2" if attention.qk_norm is None else "gemma3_text"
    elif config.layers[0].norm_placement == "reordered":
        name = "olmo3" if any(windows) else "olmo2"
    elif any(mixture.gated_shared for mixture in mixtures):
        name = "qwen2_moe"
    elif mixtures:
        over = None if attention.qk_norm is None else attention.qk_norm.over
        name = {None: "mixtral", "head": "qwen3_moe", "all_heads": "olmoe"}[over]
    elif any(multiplier != 1.0 for multiplier in multipliers):
        name = "granite"
    elif any(layer.attention.rope is None for layer in config.layers):
        name = "smollm3"
    elif attention.qk_norm is not None:
        name = "qwen3"
    elif attention.bias and not attention.out_bias:
        name = "qwen2"
    elif any(windows):
        name = "mistral" if len(windows) == 1 else "ministral"
    else:
        name = "llama"
    return FAMILIES[name]
