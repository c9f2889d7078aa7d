"""The families of transformers that can be imported and exported.

Where two families describe one model, such as Llama and Mistral, a model keeps the family that it was imported from.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from widthwise.interop.architecture import Fields, HFTensor
from widthwise.interop.family import FEED_FORWARD, Family, Keys, RotaryDecoder
from widthwise.mistakes import UserError
from widthwise.model.attention import AttentionConfig
from widthwise.model.config import ModelConfig
from widthwise.model.ffn.mlp import MLPConfig
from widthwise.model.ffn.moe import MoEConfig
from widthwise.model.ffn.swiglu import SwiGLUConfig
from widthwise.model.layer import LayerConfig
from widthwise.model.norm import NormConfig
from widthwise.model.residual.plain import PlainResidualConfig
from widthwise.sizes import MOST_LAYERS, WIDEST


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


class Llama(RotaryDecoder):
    model_type = "llama"
    class_name = "LlamaForCausalLM"
    heads_divide_width = True
    fixed: ClassVar = {**RotaryDecoder.fixed, "mlp_bias": False}


class _Windowed(RotaryDecoder):
    """A family in which sliding_window gives all layers a window."""

    kv_heads_by_default = False
    usual_window: ClassVar[int | None] = None
    """Window where config.json does not have the key."""

    def window(self, fields: Fields, layer: int) -> int | None:
        usual = None if fields.has("sliding_window") else self.usual_window
        return None if fields.get("sliding_window", usual) is None else fields.size("sliding_window", usual)

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        windows = [layer.attention.window for layer in config.layers if layer.attention.window is not None]
        return {**super().write(config, n_positions), "sliding_window": max(windows, default=None)}


class Mistral(_Windowed):
    """A Llama with its own head_dim, and with a window in early releases."""

    model_type = "mistral"
    class_name = "MistralForCausalLM"
    biases = "none"
    usual_window = 4096


class Phi3(_Windowed):
    """A Llama with two fused matrices."""

    model_type = "phi3"
    class_name = "Phi3ForCausalLM"
    biases = "none"
    default_eps = 1e-5
    kv_heads_by_default = True
    further_keys: ClassVar = dict.fromkeys(("resid_pdrop", "embd_pdrop"), 0.0)
    fused: ClassVar = {
        "self_attn.qkv_proj": ("attention.w_q", "attention.w_k", "attention.w_v"),
        "self_attn.o_proj": ("attention.w_o",),
        "mlp.gate_up_proj": ("ffn.w_gate", "ffn.w_up"),
        "mlp.down_proj": ("ffn.w_down",),
    }

    def check_written(self, fields: Fields) -> None:
        kind = fields.get("rope_parameters")["rope_type"]
        head_dim = fields.size("hidden_size") // fields.size("num_attention_heads")
        if kind not in ("default", "longrope") or (kind == "longrope" and fields.size("head_dim") != head_dim):
            raise UserError(f"rope_frequencies: transformers refuses these for a phi3 (rope_type {kind})")

    def layer_tensors(self, layer: LayerConfig) -> Iterator[HFTensor]:
        for part, name in zip(("attention", "ffn"), self.norm_names):
            yield HFTensor(f"{name}.weight", (f"{part}.norm.weight",))
        for name, parts in self.fused.items():
            yield HFTensor(f"{name}.weight", tuple(f"{part}.weight" for part in parts))


class Granite(RotaryDecoder):
    """A Llama with multipliers of embedding, updates, scores and logits."""

    model_type = "granite"
    class_name = "GraniteForCausalLM"
    fixed: ClassVar = {**RotaryDecoder.fixed, "mlp_bias": False}

    def multipliers(self, fields: Fields) -> dict[str, Any]:
        return {
            "embedding_multiplier": fields.positive("embedding_multiplier", 1.0),
            "logit_multiplier": 1 / fields.positive("logits_scaling", 1.0),
            "residual": PlainResidualConfig(multiplier=fields.positive("residual_multiplier", 1.0)),
        }

    def scale(self, fields: Fields, head_dim: int) -> float:
        return fields.positive("attention_multiplier", 1.0)

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        return {
            **super().write(config, n_positions),
            "embedding_multiplier": config.embedding_multiplier,
            "logits_scaling": 1 / config.logit_multiplier,
            "residual_multiplier": config.residual.multiplier,
            "attention_multiplier": config.layers[0].attention.scale,
        }


class OLMo2(RotaryDecoder):
    model_type = "olmo2"
    class_name = "Olmo2ForCausalLM"
    default_eps = 1e-5
    placement = "reordered"
    norm_names = ("post_attention_layernorm", "post_feedforward_layernorm")
    qk_norm = "all_heads"


class _WindowOfLayer(_Windowed):
    """A family in which layer_types names the layers with a window, and `slides` where it is missing."""

    usual_window = 4096

    def window(self, fields: Fields, layer: int) -> int | None:
        n_layers = fields.size("num_hidden_layers", most=MOST_LAYERS)
        types = fields.get("layer_types")
        if types is None:
            return super().window(fields, layer) if self.slides(fields, layer) else None
        if not isinstance(types, list) or len(types) != n_layers:
            fields.refuse("layer_types", f"a list of {n_layers}")
        if types[layer] not in ("full_attention", "sliding_attention"):
            allowed = "full_attention, sliding_attention"
            raise UserError(f"{fields.where}: layer_types.{layer}: got {types[layer]!r}; allowed: {allowed}")
        if types[layer] == "full_attention":
            return None
        window = super().window(fields, layer)
        if window is None:
            fields.refuse("sliding_window", f"a whole number, because layer_types.{layer} is sliding_attention")
        return window

    def slides(self, fields: Fields, layer: int) -> bool:
        """Return whether a layer has a window in a config without layer_types."""
        del fields, layer
        return True

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        names = {False: "full_attention", True: "sliding_attention"}
        types = [names[layer.attention.window is not None] for layer in config.layers]
        return {**super().write(config, n_positions), "layer_types": types}


class Ministral(_WindowOfLayer):
    """A Mistral with a window in some or all layers."""

    model_type = "ministral"
    class_name = "MinistralForCausalLM"
    biases = "none"


class _SwitchedWindow(_WindowOfLayer):
    """A family whose windows need use_sliding_window."""

    def window(self, fields: Fields, layer: int) -> int | None:
        window = super().window(fields, layer)
        if window is not None and not fields.flag("use_sliding_window", False):
            fields.refuse("use_sliding_window", f"true, because layer_types.{layer} is sliding_attention")
        return window

    def slides(self, fields: Fields, layer: int) -> bool:
        return fields.flag("use_sliding_window", False)

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        written = super().write(config, n_positions)
        return {**written, "use_sliding_window": written["sliding_window"] is not None}


class Qwen2(_SwitchedWindow):
    model_type = "qwen2"
    class_name = "Qwen2ForCausalLM"
    biases = "qkv"

    def slides(self, fields: Fields, layer: int) -> bool:
        return super().slides(fields, layer) and layer >= fields.size("max_window_layers", 28, least=0)


class Qwen3(Qwen2):
    model_type = "qwen3"
    class_name = "Qwen3ForCausalLM"
    biases = "option"
    usual_head_dim = 128
    qk_norm = "head"


class SmolLM3(_SwitchedWindow):
    """A Llama without rotary positions in some layers."""

    model_type = "smollm3"
    class_name = "SmolLM3ForCausalLM"
    usual_window = None
    usual_rope_base = 2e6
    ties_by_default = True
    fixed: ClassVar = {**RotaryDecoder.fixed, "mlp_bias": False}

    def slides(self, fields: Fields, layer: int) -> bool:
        return super().slides(fields, layer) and not self.rotates(fields, layer)

    def rotates(self, fields: Fields, layer: int) -> bool:
        rotating = fields.get("no_rope_layers")  # 1 for layers with rotary positions, despite its name
        if rotating is None:
            return (layer + 1) % fields.size("no_rope_layer_interval", 4) != 0
        if not isinstance(rotating, list) or layer >= len(rotating) or rotating[layer] not in (0, 1):
            fields.refuse("no_rope_layers", "a list of 0 and 1 for each layer")
        return bool(rotating[layer])

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        rotating = [int(layer.attention.rope is not None) for layer in config.layers]
        return {**super().write(config, n_positions), "no_rope_layers": rotating}


class _Mixture(RotaryDecoder):
    """A family with mixtures of experts."""

    router: ClassVar[str]
    """Name of the router in a layer."""
    experts: ClassVar[str]
    """Name of the list of experts in a layer."""
    expert_matrices: ClassVar[Mapping[str, str]]
    """Our names of the matrices of an expert -> theirs."""

    def ffn_tensors(self, layer: LayerConfig) -> Iterator[HFTensor]:
        if not isinstance(layer.ffn, MoEConfig):
            yield from super().ffn_tensors(layer)
            return
        yield HFTensor(f"{self.router}.weight", ("ffn.w_router.weight",))
        n_experts = layer.ffn.n_experts
        for i in range(n_experts):
            for ours, theirs in self.expert_matrices.items():
                name = f"{self.experts}.{i}.{theirs}.weight"
                yield HFTensor(name, (f"ffn.{ours}.weight",), block=i, n_blocks=n_experts)


class _NamedMixture(_Mixture):
    """A mixture whose matrices are named as in a dense feed-forward."""

    router = "mlp.gate"
    experts = "mlp.experts"
    expert_matrices: ClassVar = FEED_FORWARD

    def mixture(self, fields: Fields, d_expert: str) -> MoEConfig:
        """Read a mixture. d_expert: name of the key with the width of an expert."""
        name = "num_experts" if fields.has("num_experts") else "num_local_experts"  # before and in transformers 5
        return MoEConfig(
            n_experts=fields.size(name, most=WIDEST),
            top_k=fields.size("num_experts_per_tok", most=WIDEST),
            d_expert=fields.size(d_expert, most=WIDEST),
            normalised=fields.flag("norm_topk_prob", False),
        )

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        ffn = next((layer.ffn for layer in config.layers if isinstance(layer.ffn, MoEConfig)), None)
        sizes = {}
        if ffn is not None:
            sizes = {"num_experts": ffn.n_experts, "num_experts_per_tok": ffn.top_k, "norm_topk_prob": ffn.normalised}
        return {**super().write(config, n_positions), **sizes}


class OLMoE(_NamedMixture):
    """A Llama with a mixture in every layer, and QK-norm over all heads."""

    model_type = "olmoe"
    class_name = "OlmoeForCausalLM"
    default_eps = 1e-5
    qk_norm = "all_heads"
    fixed: ClassVar = {**RotaryDecoder.fixed, "clip_qkv": None}

    def ffn(self, fields: Fields, d_model: int, layer: int) -> MoEConfig:
        return self.mixture(fields, "intermediate_size")

    def check_written(self, fields: Fields) -> None:
        d_model = fields.size("hidden_size")
        width = fields.size("num_attention_heads") * fields.size("head_dim")
        if width != d_model:
            raise UserError(
                f"n_heads * head_dim: got {width}; must be d_model = {d_model} for an olmoe of transformers; grow "
                "heads with the width"
            )


class Mixtral(_Windowed, _Mixture):
    model_type = "mixtral"
    class_name = "MixtralForCausalLM"
    biases = "none"
    default_eps = 1e-5
    usual_rope_base = 1e6
    router = "block_sparse_moe.gate"
    experts = "block_sparse_moe.experts"
    expert_matrices: ClassVar = {"w_gate": "w1", "w_up": "w3", "w_down": "w2"}

    def ffn(self, fields: Fields, d_model: int, layer: int) -> MoEConfig:
        return MoEConfig(
            n_experts=fields.size("num_local_experts", 8, most=WIDEST),
            top_k=fields.size("num_experts_per_tok", 2, most=WIDEST),
            d_expert=fields.size("intermediate_size", most=WIDEST),
        )

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        ffn = config.layers[0].ffn
        sizes = {}
        if isinstance(ffn, MoEConfig):
            sizes = {"num_local_experts": ffn.n_experts, "num_experts_per_tok": ffn.top_k}
        return {**super().write(config, n_positions), **sizes}


class Qwen3MoE(_Windowed, _NamedMixture):
    """A Qwen 3 in which some or all layers have a mixture."""

    model_type = "qwen3_moe"
    class_name = "Qwen3MoeForCausalLM"
    qk_norm = "head"
    usual_window = 4096

    def window(self, fields: Fields, layer: int) -> int | None:
        return super().window(fields, layer) if fields.flag("use_sliding_window", False) else None

    def ffn(self, fields: Fields, d_model: int, layer: int) -> SwiGLUConfig | MoEConfig:
        dense = fields.get("mlp_only_layers", [])
        if not isinstance(dense, list):
            fields.refuse("mlp_only_layers", "a list of layers")
        if layer in dense or (layer + 1) % fields.size("decoder_sparse_step", 1):
            return SwiGLUConfig(d_ff=fields.size("intermediate_size", most=WIDEST))
        return self.mixture(fields, "moe_intermediate_size")

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        sizes: dict[str, Any] = {"decoder_sparse_step": 1, "mlp_only_layers": []}
        for i, layer in enumerate(config.layers):
            if isinstance(layer.ffn, MoEConfig):
                sizes["moe_intermediate_size"] = layer.ffn.d_expert
            else:
                sizes["mlp_only_layers"].append(i)
                sizes["intermediate_size"] = layer.ffn.hidden_widths[0]
        written = super().write(config, n_positions)
        return {**written, **sizes, "use_sliding_window": written["sliding_window"] is not None}


FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        GPT2(),
        Llama(),
        Mistral(),
        Ministral(),
        Phi3(),
        Granite(),
        OLMo2(),
        Qwen2(),
        Qwen3(),
        SmolLM3(),
        Mixtral(),
        OLMoE(),
        Qwen3MoE(),
    )
}


REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("gemma2", "gemma3_text"), "norms before and after each sublayer, and a gated GELU"),
    "olmo3": "rotary positions scaled by yarn, with a temperature",
    "gpt_oss": "learned attention sinks",
    "llama4_text": "attention in chunks",
    "qwen2_moe": "a shared expert with a gate",
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
    elif config.layers[0].norm_placement == "reordered":
        name = "olmo2"
    elif any(isinstance(layer.ffn, MoEConfig) for layer in config.layers):
        over = None if attention.qk_norm is None else attention.qk_norm.over
        name = {None: "mixtral", "head": "qwen3_moe", "all_heads": "olmoe"}[over]
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
