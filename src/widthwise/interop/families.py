"""The families of transformers that can be imported and exported, and GPT-2, which is like no other.

Where two families describe one model, such as Llama and Mistral, a model keeps the family that it was imported from.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from widthwise.interop.architecture import Fields, HFTensor
from widthwise.interop.dense_families import DENSE
from widthwise.interop.family import Family, Keys
from widthwise.interop.mixture_families import MIXTURES
from widthwise.model.attention import AttentionConfig
from widthwise.model.config import ModelConfig
from widthwise.model.ffn.mlp import MLPConfig
from widthwise.model.ffn.moe import MoEConfig
from widthwise.model.layer import LayerConfig
from widthwise.model.norm import NormConfig
from widthwise.sizes import WIDEST


class GPT2(Family):
    """Learned positions, layer norms, a plain feed-forward, biases everywhere; matrices are stored (in, out).

    Source: Radford et al. 2019, Language Models are Unsupervised Multitask Learners.
    """

    model_type = "gpt2"
    class_name = "GPT2LMHeadModel"
    base_prefix = "transformer."
    buffers = r".*\.attn\.(bias|masked_bias)"
    keys = Keys("n_embd", "n_inner", "n_layer", "n_head", "layer_norm_epsilon", "wte", "h", "ln_f")
    norm_kind = "layer"
    default_eps = 1e-5
    ties_by_default = True
    depth_scaled = True
    learns_positions = True
    heads_divide_width = True
    fixed: ClassVar = {"add_cross_attention": False}

    activations: ClassVar = {
        "gelu_new": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "gelu": "gelu",
        "relu": "relu",
        "relu2": "relu2",
        "silu": "silu",
        "swish": "silu",
    }
    """Names of transformers -> our names; the first of several names for one function is written."""
    matrices: ClassVar = {
        "attn.c_attn": ("attention.w_q", "attention.w_k", "attention.w_v"),
        "attn.c_proj": ("attention.w_o",),
        "mlp.c_fc": ("ffn.w_up",),
        "mlp.c_proj": ("ffn.w_down",),
    }
    norms: ClassVar = {"ln_1": ("attention.norm",), "ln_2": ("ffn.norm",)}
    unrotated: ClassVar = {"rope_base": None, "bias": True, "out_bias": True}

    def n_positions(self, fields: Fields) -> int:
        return fields.size("n_positions", 1024)

    def ffn(self, fields: Fields, d_model: int, layer: int) -> MLPConfig:
        name = fields.get("activation_function", "gelu_new")
        activation: Any = self.activations.get(name) if isinstance(name, str) else None
        if activation is None:
            fields.refuse("activation_function", ", ".join(self.activations))
        return MLPConfig(d_ff=fields.size("n_inner", 4 * d_model, most=WIDEST), activation=activation, bias=True)

    def attention(self, fields: Fields, norm: NormConfig, layer: int) -> AttentionConfig:
        n_heads = fields.size("n_head")
        d_model = norm.norm_dim
        if d_model % n_heads:
            fields.refuse("n_head", f"a divisor of n_embd = {d_model}")
        head_dim = d_model // n_heads
        scale = head_dim**-0.5 if fields.flag("scale_attn_weights", True) else 1.0
        if fields.flag("scale_attn_by_inverse_layer_idx", False):
            scale /= layer + 1
        return AttentionConfig(n_heads=n_heads, n_kv_heads=n_heads, head_dim=head_dim, scale=scale, **self.unrotated)

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        names = {ours: theirs for theirs, ours in reversed(self.activations.items())}
        return {
            **super().write(config, n_positions),
            "n_positions": n_positions if config.positions is None else config.positions.n_positions,
            "activation_function": names[getattr(config.layers[0].ffn, "activation", "gelu_tanh")],
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        }

    def layer_tensors(self, layer: LayerConfig) -> Iterator[HFTensor]:
        for name, parts in (self.norms | self.matrices).items():
            yield HFTensor(f"{name}.weight", tuple(f"{part}.weight" for part in parts), name in self.matrices)
            yield HFTensor(f"{name}.bias", tuple(f"{part}.bias.weight" for part in parts))


FAMILIES: dict[str, Family] = {family.model_type: family() for family in (GPT2, *DENSE, *MIXTURES)}


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
    """Return the usual family of a model; whether it can express the model is checked by reading back."""
    attention = config.layers[0].attention
    has_multipliers = {config.embedding_multiplier, config.logit_multiplier, config.residual.multiplier} != {1.0}
    are_rotary = all(layer.attention.rope is not None for layer in config.layers)
    windows = {layer.attention.window for layer in config.layers}
    if config.positions is not None or config.final_norm.kind == "layer":
        name = "gpt2"
    elif config.layers[0].norm_placement == "both":
        name = "gemma2" if attention.qk_norm is None else "gemma3_text"
    elif config.layers[0].norm_placement == "reordered":
        name = "olmo3" if any(windows) else "olmo2"
    elif any(isinstance(layer.ffn, MoEConfig) for layer in config.layers):
        over = None if attention.qk_norm is None else attention.qk_norm.over
        name = {None: "mixtral", "head": "qwen3_moe", "all_heads": "olmoe"}[over]
        if any(isinstance(layer.ffn, MoEConfig) and layer.ffn.gated_shared for layer in config.layers):
            name = "qwen2_moe"
    elif has_multipliers:
        name = "granite"
    elif not are_rotary:
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
