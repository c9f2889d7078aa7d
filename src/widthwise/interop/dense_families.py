"""Families of dense models in transformers, with rotary positions and a gated feed-forward in every layer."""

from typing import Any, ClassVar

import torch

from widthwise.interop.architecture import Fields, read_rope, write_rope
from widthwise.interop.family import RotaryDecoder
from widthwise.kernels.rotary import Rope
from widthwise.mistakes import UserError
from widthwise.model.attention import AttentionConfig
from widthwise.model.config import ModelConfig
from widthwise.model.ffn.mlp import MLPConfig
from widthwise.model.norm import NormConfig
from widthwise.model.residual.plain import PlainResidualConfig
from widthwise.sizes import MOST_LAYERS, WIDEST

HALF_PRECISION = {"bfloat16": torch.bfloat16, "float16": torch.float16}
"""Name in config.json -> type of the weights. Any other name, or none, means float32."""


class Llama(RotaryDecoder):
    model_type = "llama"
    class_name = "LlamaForCausalLM"
    heads_divide_width = True
    fixed: ClassVar = {**RotaryDecoder.fixed, "mlp_bias": False}


class Windowed(RotaryDecoder):
    """A family in which sliding_window is the window of all layers."""

    kv_heads_by_default = False
    default_window: ClassVar[int | None] = None
    """Window in tokens if config.json does not have the key."""

    def window(self, fields: Fields, layer: int) -> int | None:
        return fields.optional("sliding_window", self.default_window, fields.size)

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        windows = [layer.attention.window for layer in config.layers if layer.attention.window is not None]
        return {**super().write(config, n_positions), "sliding_window": max(windows, default=None)}


class Mistral(Windowed):
    """A Llama with a separate head_dim, and with a window in early releases."""

    model_type = "mistral"
    class_name = "MistralForCausalLM"
    default_positions = 131072
    biases = "none"
    default_window = 4096


class Phi3(Windowed):
    """A Llama with two fused matrices, one for queries, keys and values, and one for gate and up."""

    model_type = "phi3"
    class_name = "Phi3ForCausalLM"
    default_positions = 4096
    biases = "none"
    default_eps = 1e-5
    kv_heads_by_default = True
    extra_keys: ClassVar = dict.fromkeys(("resid_pdrop", "embd_pdrop"), 0.0)
    projections: ClassVar = {"qkv_proj": ("w_q", "w_k", "w_v"), "o_proj": ("w_o",)}
    feed_forward: ClassVar = {"gate_up_proj": ("w_gate", "w_up"), "down_proj": ("w_down",)}

    def check_written(self, fields: Fields) -> None:
        kind = fields.get("rope_parameters")["rope_type"]
        default_head_dim = fields.size("hidden_size") // fields.size("num_attention_heads")
        if not (kind == "default" or (kind == "longrope" and fields.size("head_dim") == default_head_dim)):
            raise UserError(f"rope_frequencies: transformers refuses these for a phi3 (rope_type {kind})")


class Granite(RotaryDecoder):
    """A Llama with multipliers of embedding, updates, scores and logits."""

    model_type = "granite"
    class_name = "GraniteForCausalLM"
    scale_is_free = True
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
    norm_names: ClassVar = {
        "attention.norm": "post_attention_layernorm",
        "ffn.norm": "post_feedforward_layernorm",
    }
    qk_norm = "all_heads"


class _WindowsByLayer(Windowed):
    """A family in which layer_types names the layers with a window."""

    default_window = 4096
    full_every: ClassVar[int | None] = None
    """Without layer_types, every full_every-th layer has no window; None: all layers have one."""

    def window(self, fields: Fields, layer: int) -> int | None:
        n_layers = fields.size("num_hidden_layers", most=MOST_LAYERS)
        types = fields.get("layer_types")
        if types is None:
            return super().window(fields, layer) if self.has_default_window(fields, layer) else None
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

    def has_default_window(self, fields: Fields, layer: int) -> bool:
        """Return whether a layer, counted from 0, has a window in a config without layer_types."""
        return self.full_every is None or (layer + 1) % self.full_every != 0

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        windows = [layer.attention.window for layer in config.layers]
        types = ["full_attention" if window is None else "sliding_attention" for window in windows]
        return {**super().write(config, n_positions), "layer_types": types}


class Ministral(_WindowsByLayer):
    """A Mistral with a window in some or all layers."""

    model_type = "ministral"
    class_name = "MinistralForCausalLM"
    default_positions = 131072
    biases = "none"


class OptionalWindow(_WindowsByLayer):
    """A family that uses windows only if use_sliding_window is true."""

    def window(self, fields: Fields, layer: int) -> int | None:
        window = super().window(fields, layer)
        if window is not None and not fields.flag("use_sliding_window", False):
            fields.refuse("use_sliding_window", f"true, because layer_types.{layer} is sliding_attention")
        return window

    def has_default_window(self, fields: Fields, layer: int) -> bool:
        return fields.flag("use_sliding_window", False)

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        written = super().write(config, n_positions)
        return {**written, "use_sliding_window": written["sliding_window"] is not None}


class _RopeByWindow(_WindowsByLayer):
    """A family whose layers with and without a window have different rotary positions."""

    default_local_base: ClassVar[float | None] = None
    """Default base of the layers with a window; None: default_rope_base."""

    def rotation(self, fields: Fields, layer: int, head_dim: int) -> tuple[Rope, float]:
        is_full = self.window(fields, layer) is None
        kind = "full_attention" if is_full else "sliding_attention"
        rules = fields.get("rope_parameters", {})
        if not isinstance(rules, dict) or set(rules) - {"full_attention", "sliding_attention"}:
            fields.refuse("rope_parameters", "a mapping with full_attention and sliding_attention")
        entries: dict[str, Any] = {"rope_parameters": rules.get(kind)}
        if is_full:  # rope_scaling and rope_theta, of transformers 4, are for layers without a window
            entries |= {key: fields.get(key) for key in ("rope_scaling", "rope_theta")}
        else:
            entries["rope_theta"] = fields.get("rope_local_base_freq", self.default_local_base)
        return read_rope(Fields(entries, fields.where), head_dim, self.default_rope_base)

    def write_rotations(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        written: dict[str, Any] = {}
        rules = {}
        for layer in config.layers:
            attention = layer.attention
            if attention.rope is None:
                continue
            entries = write_rope(attention.rope, n_positions, self.query_factor(attention))
            if attention.window is None:
                rules["full_attention"] = entries["rope_parameters"]
                written = entries
            else:
                rules["sliding_attention"] = entries["rope_parameters"]
        return {**written, "rope_parameters": rules}


class OLMo3(_RopeByWindow, OLMo2):
    """An OLMo 2 with windows in most layers, and with other rotary positions in the rest."""

    model_type = "olmo3"
    class_name = "Olmo3ForCausalLM"
    kv_heads_by_default = True
    default_rope_base = 5e5
    full_every = 4


class Gemma2(_WindowsByLayer):
    """Norms before and after the sublayers, GEGLUs, gains of 1 + weight, a scaled embedding, and soft caps."""

    model_type = "gemma2"
    class_name = "Gemma2ForCausalLM"
    default_positions = 8192
    heads_divide_width = True
    placement = "both"
    gain_offset = 1.0
    ties_by_default = True
    default_head_dim = 256
    full_every = 2
    scale_is_free = True
    default_score_cap: ClassVar[float | None] = 50.0
    default_logit_cap: ClassVar[float | None] = 30.0
    norm_names: ClassVar = {
        "attention.norm": "input_layernorm",
        "attention.norm.post": "post_attention_layernorm",
        "ffn.norm": "pre_feedforward_layernorm",
        "ffn.norm.post": "post_feedforward_layernorm",
    }
    activation: ClassVar = {"hidden_activation": "gelu_pytorch_tanh"}
    fixed: ClassVar = {**activation, "use_bidirectional_attention": False}

    def attention(self, fields: Fields, norm: NormConfig, layer: int) -> AttentionConfig:
        cap = fields.optional("attn_logit_softcapping", self.default_score_cap, fields.positive)
        return super().attention(fields, norm, layer).model_copy(update={"score_cap": cap})

    def ffn(self, fields: Fields, d_model: int, layer: int) -> MLPConfig:
        d_ff = fields.size("intermediate_size", most=WIDEST)
        return MLPConfig(d_ff=d_ff, activation="gelu_tanh", gated=True)

    def scale(self, fields: Fields, head_dim: int) -> float:
        return fields.positive("query_pre_attn_scalar", 256) ** -0.5

    def multipliers(self, fields: Fields) -> dict[str, Any]:
        # transformers rounds the root of d_model to the type of the weights.
        dtype = HALF_PRECISION.get(str(fields.get("dtype", fields.get("torch_dtype"))), torch.float32)
        root = torch.tensor(fields.size("hidden_size") ** 0.5, dtype=dtype).item()
        logit_cap = fields.optional("final_logit_softcapping", self.default_logit_cap, fields.positive)
        return {"embedding_multiplier": root, "logit_cap": logit_cap}

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        written = super().write(config, n_positions)
        attention = config.layers[0].attention
        return {
            **written,
            "sliding_window": written["sliding_window"] or self.default_window,  # transformers requires a number
            "query_pre_attn_scalar": round(attention.scale**-2),
            "attn_logit_softcapping": attention.score_cap,
            "final_logit_softcapping": config.logit_cap,
        }


class Gemma3(_RopeByWindow, Gemma2):
    """A Gemma 2 with QK-norm, other rotary positions in the layers with a window, and no cap of the scores."""

    model_type = "gemma3_text"
    class_name = "Gemma3ForCausalLM"
    default_positions = 131072
    default_score_cap = None
    default_logit_cap = None
    fixed: ClassVar = {**Gemma2.fixed, "attn_logit_softcapping": None}  # which transformers does not apply
    qk_norm = "head"
    default_rope_base = 1e6
    default_local_base = 1e4

    def has_default_window(self, fields: Fields, layer: int) -> bool:
        return (layer + 1) % fields.size("sliding_window_pattern", 6) != 0

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        written = super().write(config, n_positions)
        if "sliding_attention" in written["rope_parameters"]:
            written["rope_local_base_freq"] = written["rope_parameters"]["sliding_attention"]["rope_theta"]
        return written


class Qwen2(OptionalWindow):
    model_type = "qwen2"
    class_name = "Qwen2ForCausalLM"
    default_positions = 32768
    biases = "qkv"

    def has_default_window(self, fields: Fields, layer: int) -> bool:
        return super().has_default_window(fields, layer) and layer >= fields.size("max_window_layers", 28, least=0)


class Qwen3(Qwen2):
    model_type = "qwen3"
    class_name = "Qwen3ForCausalLM"
    biases = "option"
    default_head_dim = 128
    qk_norm = "head"


class SmolLM3(OptionalWindow):
    """A Llama without rotary positions in some layers; by default only these may have a window."""

    model_type = "smollm3"
    class_name = "SmolLM3ForCausalLM"
    default_positions = 32768
    default_window = None
    default_rope_base = 2e6
    ties_by_default = True
    fixed: ClassVar = {**RotaryDecoder.fixed, "mlp_bias": False}

    def has_default_window(self, fields: Fields, layer: int) -> bool:
        return super().has_default_window(fields, layer) and not self.rotates(fields, layer)

    def rotation(self, fields: Fields, layer: int, head_dim: int) -> tuple[Rope | None, float]:
        return super().rotation(fields, layer, head_dim) if self.rotates(fields, layer) else (None, 1.0)

    def rotates(self, fields: Fields, layer: int) -> bool:
        """Return whether a layer has rotary positions."""
        rotating = fields.get("no_rope_layers")  # despite its name, 1 for layers with rotary positions
        if rotating is None:
            return (layer + 1) % fields.size("no_rope_layer_interval", 4) != 0
        if not isinstance(rotating, list) or layer >= len(rotating) or rotating[layer] not in (0, 1):
            fields.refuse("no_rope_layers", "a list of 0 and 1 for each layer")
        return bool(rotating[layer])

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        rotating = [int(layer.attention.rope is not None) for layer in config.layers]
        return {**super().write(config, n_positions), "no_rope_layers": rotating}


DENSE = (Llama, Mistral, Ministral, Phi3, Gemma2, Gemma3, Granite, OLMo2, OLMo3, Qwen2, Qwen3, SmolLM3)
