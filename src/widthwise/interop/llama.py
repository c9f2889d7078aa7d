"""Decoders with rotary positions, RMSNorm and SwiGLU: Llama, Qwen 2, Qwen 3 and OLMo 2."""

from collections.abc import Iterator
from typing import Any, ClassVar

from widthwise.config_io import UserError
from widthwise.interop.architecture import Architecture, Fields, HFTensor
from widthwise.interop.rope_scaling import read_rope, write_rope
from widthwise.model.attention import AttentionConfig
from widthwise.model.config import InitConfig, ModelConfig
from widthwise.model.ffn.swiglu import SwiGLUConfig
from widthwise.model.layer import LayerConfig
from widthwise.model.norm import NormConfig, Placement, QKNormConfig

PROJECTIONS = {"w_q": "q_proj", "w_k": "k_proj", "w_v": "v_proj", "w_o": "o_proj"}
FEED_FORWARD = {"w_gate": "gate_proj", "w_up": "up_proj", "w_down": "down_proj"}


class RotaryDecoder(Architecture):
    base_prefix = "model."
    buffers = r".*rotary_emb\.inv_freq"
    placement: ClassVar[Placement] = "pre"
    attention_norm_name: ClassVar[str] = "input_layernorm"
    ffn_norm_name: ClassVar[str] = "post_attention_layernorm"

    def biases(self, fields: Fields) -> tuple[bool, bool]:
        """Whether w_q, w_k and w_v have biases, and whether w_o has one."""
        has_all = fields.flag("attention_bias", False)
        return has_all, has_all

    def qk_norm(self, eps: float) -> QKNormConfig | None:
        return None

    def head_dim(self, fields: Fields) -> int:
        """Where the config gives none, hidden_size / num_attention_heads."""
        return fields.width("head_dim", max(1, fields.width("hidden_size") // fields.size("num_attention_heads")))

    def check_options(self, fields: Fields) -> None:
        """Raises UserError for what this architecture may do and our models cannot."""
        fields.only("hidden_act", "silu")

    def read(self, fields: Fields) -> ModelConfig:
        self.check_options(fields)
        d_model, eps = fields.width("hidden_size"), fields.positive("rms_norm_eps")
        norm = NormConfig(eps=eps, norm_dim=d_model)
        layer = LayerConfig(
            d_model=d_model,
            d_in=d_model,
            d_out=d_model,
            norm_placement=self.placement,
            attention_norm=norm,
            attention=self._attention(fields, eps),
            ffn_norm=norm,
            ffn=SwiGLUConfig(d_ff=fields.width("intermediate_size")),
        )
        return ModelConfig(
            vocab_size=fields.size("vocab_size"),
            d_model=d_model,
            layers=(layer,) * fields.n_layers("num_hidden_layers"),
            final_norm=norm,
            final_norm_width=d_model,
            tie_embeddings=fields.flag("tie_word_embeddings", False),
            init=InitConfig(std=fields.positive("initializer_range", 0.02), depth_scaled=False),
        )

    def _attention(self, fields: Fields, eps: float) -> AttentionConfig:
        head_dim, n_heads = self.head_dim(fields), fields.size("num_attention_heads")
        base, frequencies = read_rope(fields, head_dim)
        bias, out_bias = self.biases(fields)
        return AttentionConfig(
            n_heads=n_heads,
            n_kv_heads=fields.size("num_key_value_heads", n_heads),
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope_base=base,
            rope_frequencies=frequencies,
            bias=bias,
            out_bias=out_bias,
            qk_norm=self.qk_norm(eps),
        )

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        layer = config.layers[0]
        attention = layer.attention
        rope = {} if attention.rope is None else write_rope(attention.rope, n_positions)
        return {
            "vocab_size": config.vocab_size,
            "hidden_size": config.d_model,
            "intermediate_size": layer.ffn.hidden_widths[0],
            "num_hidden_layers": config.n_layers,
            "num_attention_heads": attention.n_heads,
            "num_key_value_heads": attention.n_kv_heads,
            "head_dim": attention.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": n_positions,
            "initializer_range": config.init.std,
            "rms_norm_eps": config.final_norm.eps,
            "tie_word_embeddings": config.tie_embeddings,
            "attention_bias": attention.bias,
            "attention_dropout": 0.0,
            **rope,
        }

    def tensors(self, config: ModelConfig) -> Iterator[HFTensor]:
        yield HFTensor("model.embed_tokens.weight", ("embedding.weight",))
        for i, layer in enumerate(config.layers):
            for ours, theirs in self._layer_names(layer).items():
                yield HFTensor(f"model.layers.{i}.{theirs}", (f"layers.{i}.{ours}",))
        yield HFTensor("model.norm.weight", ("exit.norm.weight",))
        if not config.tie_embeddings:
            yield HFTensor("lm_head.weight", ("head.weight",))

    def _layer_names(self, layer: LayerConfig) -> dict[str, str]:
        attention = layer.attention
        has_bias = dict.fromkeys(("w_q", "w_k", "w_v"), attention.bias) | {"w_o": attention.out_bias}
        names = {
            "attention.norm.weight": f"{self.attention_norm_name}.weight",
            "ffn.norm.weight": f"{self.ffn_norm_name}.weight",
        }
        for ours, theirs in PROJECTIONS.items():
            names[f"attention.{ours}.weight"] = f"self_attn.{theirs}.weight"
            if has_bias[ours]:
                names[f"attention.{ours}.bias.weight"] = f"self_attn.{theirs}.bias"
        if attention.qk_norm is not None:
            names |= {f"attention.{norm}.weight": f"self_attn.{norm}.weight" for norm in ("q_norm", "k_norm")}
        return names | {f"ffn.{ours}.weight": f"mlp.{theirs}.weight" for ours, theirs in FEED_FORWARD.items()}


class Llama(RotaryDecoder):
    model_type = "llama"
    class_name = "LlamaForCausalLM"

    def claims(self, config: ModelConfig) -> bool:
        return True

    def check_options(self, fields: Fields) -> None:
        super().check_options(fields)
        fields.only("mlp_bias", False)

    def check_written(self, fields: Fields) -> None:
        d_model, n_heads = fields.width("hidden_size"), fields.size("num_attention_heads")
        if d_model % n_heads:
            raise UserError(
                f"d_model: got {d_model}, which is no multiple of n_heads = {n_heads}; transformers refuses such a "
                "llama, even where head_dim is given; grow either, so that it is one"
            )


class OLMo2(RotaryDecoder):
    model_type = "olmo2"
    class_name = "Olmo2ForCausalLM"
    placement = "reordered"
    attention_norm_name = "post_attention_layernorm"
    ffn_norm_name = "post_feedforward_layernorm"

    def claims(self, config: ModelConfig) -> bool:
        layer = config.layers[0]
        return layer.norm_placement == "reordered"

    def qk_norm(self, eps: float) -> QKNormConfig:
        return QKNormConfig(eps=eps, over="all_heads")


class _Qwen(RotaryDecoder):
    def check_options(self, fields: Fields) -> None:
        super().check_options(fields)
        n_layers = fields.n_layers("num_hidden_layers")
        if fields.get("layer_types") is not None:
            fields.only("layer_types", ["full_attention"] * n_layers)
        elif fields.flag("use_sliding_window", False) and fields.size("max_window_layers", 28, least=0) < n_layers:
            fields.refuse("use_sliding_window", "false, as attention sees all of the text")


class Qwen2(_Qwen):
    model_type = "qwen2"
    class_name = "Qwen2ForCausalLM"

    def claims(self, config: ModelConfig) -> bool:
        attention = config.layers[0].attention
        return attention.bias and not attention.out_bias

    def biases(self, fields: Fields) -> tuple[bool, bool]:
        return True, False

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        written = super().write(config, n_positions)
        del written["attention_bias"]  # always there
        return {**written, "use_sliding_window": False}


class Qwen3(_Qwen):
    model_type = "qwen3"
    class_name = "Qwen3ForCausalLM"

    def claims(self, config: ModelConfig) -> bool:
        return config.layers[0].attention.qk_norm is not None

    def head_dim(self, fields: Fields) -> int:
        return fields.width("head_dim", 128)

    def qk_norm(self, eps: float) -> QKNormConfig:
        return QKNormConfig(eps=eps, over="head")

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        return {**super().write(config, n_positions), "use_sliding_window": False}
