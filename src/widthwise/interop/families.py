"""The families of transformers that can be imported and exported: GPT-2, those in `dense_families`, and mixtures.

Where two families describe one model, such as Llama and Mistral, a model keeps the family that it was imported from.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from widthwise.interop.architecture import Fields, HFTensor
from widthwise.interop.dense_families import DENSE, OptionalWindow, Windowed
from widthwise.interop.family import Family, Keys, RotaryDecoder
from widthwise.mistakes import UserError
from widthwise.model.attention import AttentionConfig
from widthwise.model.config import ModelConfig
from widthwise.model.ffn.interface import FFNConfig
from widthwise.model.ffn.mlp import Activation, MLPConfig
from widthwise.model.ffn.moe import MoEConfig
from widthwise.model.ffn.swiglu import SwiGLUConfig
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
    positions_key = "n_positions"
    default_positions = 1024
    keys = Keys("n_embd", "n_inner", "n_layer", "n_head", "layer_norm_epsilon", "wte", "h", "ln_f")
    norm_kind = "layer"
    default_eps = 1e-5
    ties_by_default = True
    depth_scaled = True
    learns_positions = True
    heads_divide_width = True
    fixed: ClassVar = {"add_cross_attention": False}
    activations: ClassVar[dict[str, Activation]] = {
        "gelu_new": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "gelu": "gelu",
        "relu": "relu",
        "relu2": "relu2",
        "silu": "silu",
        "swish": "silu",
    }
    """Names of transformers -> our names. `write` takes the first of several names for one function."""
    matrices: ClassVar = {
        "attn.c_attn": ("attention.w_q", "attention.w_k", "attention.w_v"),
        "attn.c_proj": ("attention.w_o",),
        "mlp.c_fc": ("ffn.w_up",),
        "mlp.c_proj": ("ffn.w_down",),
    }
    """Name of a stored matrix -> our matrices that it stacks."""
    norms: ClassVar = {"ln_1": ("attention.norm",), "ln_2": ("ffn.norm",)}

    def ffn(self, fields: Fields, d_model: int, layer: int) -> MLPConfig:
        name = fields.get("activation_function", "gelu_new")
        if not isinstance(name, str) or name not in self.activations:
            fields.refuse("activation_function", ", ".join(self.activations))
        d_ff = fields.size("n_inner", 4 * d_model, most=WIDEST)
        return MLPConfig(d_ff=d_ff, activation=self.activations[name], bias=True)

    def attention(self, fields: Fields, norm: NormConfig, layer: int) -> AttentionConfig:
        n_heads = fields.size("n_head")
        d_model = norm.norm_dim
        if d_model % n_heads:
            fields.refuse("n_head", f"a divisor of n_embd = {d_model}")
        head_dim = d_model // n_heads
        scale = head_dim**-0.5 if fields.flag("scale_attn_weights", True) else 1.0
        if fields.flag("scale_attn_by_inverse_layer_idx", False):
            scale /= layer + 1
        sizes: dict[str, Any] = {"n_heads": n_heads, "n_kv_heads": n_heads, "head_dim": head_dim}
        return AttentionConfig(**sizes, scale=scale, rope_base=None, bias=True, out_bias=True)

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        names = {ours: theirs for theirs, ours in reversed(self.activations.items())}  # the first name overrides
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


class Mixture(RotaryDecoder):
    """A family with mixtures of experts."""

    router: ClassVar[str] = "mlp.gate"
    """Name of the router in a layer."""
    experts: ClassVar[str] = "mlp.experts"
    """Name of the list of experts in a layer."""
    mixture_keys: ClassVar[Mapping[str, str]] = {
        "n_experts": "num_experts",
        "top_k": "num_experts_per_tok",
        "normalised": "norm_topk_prob",
        "d_expert": "intermediate_size",
    }
    """Fields of a mixture -> keys of config.json."""

    def ffn(self, fields: Fields, d_model: int, layer: int) -> FFNConfig:
        n_experts_key = "num_experts" if fields.has("num_experts") else "num_local_experts"  # of transformers 5
        return MoEConfig(
            n_experts=fields.size(n_experts_key, most=WIDEST),
            top_k=fields.size("num_experts_per_tok", most=WIDEST),
            d_expert=fields.size(self.mixture_keys["d_expert"], most=WIDEST),
            normalised=fields.flag("norm_topk_prob", False),
        )

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        written = super().write(config, n_positions)
        mixtures = [layer.ffn for layer in config.layers if isinstance(layer.ffn, MoEConfig)]
        if mixtures:
            written |= {key: getattr(mixtures[0], field) for field, key in self.mixture_keys.items()}
        return written

    def ffn_tensors(self, layer: LayerConfig) -> Iterator[HFTensor]:
        if not isinstance(layer.ffn, MoEConfig):
            yield from super().ffn_tensors(layer)
            return
        yield HFTensor(f"{self.router}.weight", ("ffn.w_router.weight",))
        n_experts = layer.ffn.n_experts
        for i in range(n_experts):
            for name, (part,) in self.feed_forward.items():
                expert_name = f"{self.experts}.{i}.{name}.weight"
                yield HFTensor(expert_name, (f"ffn.{part}.weight",), block=i, n_blocks=n_experts)


class OLMoE(Mixture):
    """A Llama with a mixture in every layer, and QK-norm over all heads."""

    model_type = "olmoe"
    class_name = "OlmoeForCausalLM"
    default_positions = 4096
    default_eps = 1e-5
    qk_norm = "all_heads"
    fixed: ClassVar = {**RotaryDecoder.fixed, "clip_qkv": None}

    def check_written(self, fields: Fields) -> None:
        d_model = fields.size("hidden_size")
        width = fields.size("num_attention_heads") * fields.size("head_dim")
        if width != d_model:
            raise UserError(
                f"n_heads * head_dim: got {width}; must be d_model = {d_model} for an olmoe of transformers; grow "
                "heads with the width"
            )


class Mixtral(Windowed, Mixture):
    """A Mistral with a mixture in every layer."""

    model_type = "mixtral"
    class_name = "MixtralForCausalLM"
    default_positions = 131072
    biases = "none"
    default_eps = 1e-5
    default_rope_base = 1e6
    router = "block_sparse_moe.gate"
    experts = "block_sparse_moe.experts"
    feed_forward: ClassVar = {"w1": ("w_gate",), "w3": ("w_up",), "w2": ("w_down",)}
    mixture_keys: ClassVar = {"n_experts": "num_local_experts", "top_k": "num_experts_per_tok"}

    def ffn(self, fields: Fields, d_model: int, layer: int) -> MoEConfig:
        return MoEConfig(
            n_experts=fields.size("num_local_experts", 8, most=WIDEST),
            top_k=fields.size("num_experts_per_tok", 2, most=WIDEST),
            d_expert=fields.size("intermediate_size", most=WIDEST),
        )


class Qwen3MoE(Windowed, Mixture):
    """A Qwen 3 in which some or all layers have a mixture."""

    model_type = "qwen3_moe"
    class_name = "Qwen3MoeForCausalLM"
    default_positions = 32768
    qk_norm = "head"
    default_window = 4096
    mixture_keys: ClassVar = {**Mixture.mixture_keys, "d_expert": "moe_intermediate_size"}

    def window(self, fields: Fields, layer: int) -> int | None:
        return super().window(fields, layer) if fields.flag("use_sliding_window", False) else None

    def ffn(self, fields: Fields, d_model: int, layer: int) -> FFNConfig:
        dense_layers = fields.get("mlp_only_layers", [])
        if not isinstance(dense_layers, list):
            fields.refuse("mlp_only_layers", "a list of layers")
        if layer in dense_layers or (layer + 1) % fields.size("decoder_sparse_step", 1):
            return SwiGLUConfig(d_ff=fields.size("intermediate_size", most=WIDEST))
        return super().ffn(fields, d_model, layer)

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        written = super().write(config, n_positions)
        dense_layers = [i for i, layer in enumerate(config.layers) if not isinstance(layer.ffn, MoEConfig)]
        written |= {"decoder_sparse_step": 1, "mlp_only_layers": dense_layers}
        if dense_layers:
            written["intermediate_size"] = config.layers[dense_layers[-1]].ffn.hidden_widths[0]
        return {**written, "use_sliding_window": written["sliding_window"] is not None}


class Qwen2MoE(OptionalWindow, Qwen3MoE):
    """A Qwen 2 in which some or all layers have a mixture with a gated shared expert."""

    model_type = "qwen2_moe"
    class_name = "Qwen2MoeForCausalLM"
    biases = "qkv"
    qk_norm = None
    fixed: ClassVar = {**RotaryDecoder.fixed, "qkv_bias": True}
    mixture_keys: ClassVar = {**Qwen3MoE.mixture_keys, "d_shared": "shared_expert_intermediate_size"}

    def has_default_window(self, fields: Fields, layer: int) -> bool:
        is_low = layer < fields.size("max_window_layers", 28, least=0)
        return super().has_default_window(fields, layer) and is_low and layer % 2 == 0

    def ffn(self, fields: Fields, d_model: int, layer: int) -> FFNConfig:
        ffn = super().ffn(fields, d_model, layer)
        if not isinstance(ffn, MoEConfig):
            return ffn
        d_shared = fields.size("shared_expert_intermediate_size", most=WIDEST)
        return ffn.model_copy(update={"d_shared": d_shared, "gated_shared": True})

    def ffn_tensors(self, layer: LayerConfig) -> Iterator[HFTensor]:
        yield from super().ffn_tensors(layer)
        if isinstance(layer.ffn, MoEConfig):
            yield HFTensor("mlp.shared_expert_gate.weight", ("ffn.w_shared_gate.weight",))
            for name, (part,) in self.feed_forward.items():
                yield HFTensor(f"mlp.shared_expert.{name}.weight", (f"ffn.shared.{part}.weight",))


FAMILIES: dict[str, Family] = {
    family.model_type: family() for family in (GPT2, *DENSE, Mixtral, OLMoE, Qwen2MoE, Qwen3MoE)
}
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
