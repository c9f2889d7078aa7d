"""The families of transformers: GPT-2, and Llama, Qwen 2, Qwen 3 and OLMo 2 with rotary positions.

A family has one table of the keys of its sizes in config.json, by which they are both read and written.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from widthwise.config_io import UserError
from widthwise.interop.architecture import Architecture, Fields, HFTensor
from widthwise.interop.rope_scaling import read_rope, write_rope
from widthwise.model.attention import AttentionConfig
from widthwise.model.config import InitConfig, ModelConfig
from widthwise.model.ffn.mlp import MLPConfig
from widthwise.model.ffn.swiglu import SwiGLUConfig
from widthwise.model.input_tables import LearnedPositionsConfig
from widthwise.model.layer import LayerConfig
from widthwise.model.norm import NormConfig, NormKind, Placement, QKNormConfig


class Keys(NamedTuple):
    """The keys of a family for its sizes, and the names of its modules outside the layers."""

    d_model: str
    d_ff: str
    n_layers: str
    n_heads: str
    eps: str
    embedding: str
    layers: str
    final_norm: str


class Family(Architecture):
    """A family whose layers have equal sizes."""

    keys: ClassVar[Keys]
    norm_kind: ClassVar[NormKind] = "rms"
    default_eps: ClassVar[float | None] = None
    placement: ClassVar[Placement] = "pre"
    ties_by_default: ClassVar[bool] = False
    depth_scaled: ClassVar[bool] = False

    def check_options(self, fields: Fields) -> None:
        """Raise UserError for options of the family that our models lack."""

    @abstractmethod
    def attention(self, fields: Fields, norm: NormConfig, layer: int) -> AttentionConfig:
        """Read the attention of a layer. norm: that of the stream."""

    @abstractmethod
    def ffn(self, fields: Fields, d_model: int) -> SwiGLUConfig | MLPConfig:
        """Read the feed-forward."""

    def positions(self, fields: Fields) -> LearnedPositionsConfig | None:
        """Read the learned positions, if the family has them."""
        return None

    @abstractmethod
    def layer_tensors(self, layer: LayerConfig) -> Iterator[HFTensor]:
        """Yield the tensors of a layer, with names inside the layer on both sides."""

    def read(self, fields: Fields) -> ModelConfig:
        self.check_options(fields)
        keys, d_model = self.keys, fields.width(self.keys.d_model)
        norm = NormConfig(kind=self.norm_kind, eps=fields.positive(keys.eps, self.default_eps), norm_dim=d_model)
        sizes, ffn = {"d_model": d_model, "d_in": d_model, "d_out": d_model}, self.ffn(fields, d_model)
        norms = {"norm_placement": self.placement, "attention_norm": norm, "ffn_norm": norm}
        return ModelConfig(
            vocab_size=fields.size("vocab_size"),
            d_model=d_model,
            layers=tuple(
                LayerConfig(**sizes, **norms, attention=self.attention(fields, norm, i), ffn=ffn)
                for i in range(fields.n_layers(keys.n_layers))
            ),
            final_norm=norm,
            final_norm_width=d_model,
            positions=self.positions(fields),
            tie_embeddings=fields.flag("tie_word_embeddings", self.ties_by_default),
            init=InitConfig(std=fields.positive("initializer_range", 0.02), depth_scaled=self.depth_scaled),
        )

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        keys, layer = self.keys, config.layers[0]
        return {
            "vocab_size": config.vocab_size,
            keys.d_model: config.d_model,
            keys.d_ff: layer.ffn.hidden_widths[0],
            keys.n_layers: config.n_layers,
            keys.n_heads: layer.attention.n_heads,
            keys.eps: config.final_norm.eps,
            "initializer_range": config.init.std,
            "tie_word_embeddings": config.tie_embeddings,
        }

    def tensors(self, config: ModelConfig) -> Iterator[HFTensor]:
        keys, prefix = self.keys, self.base_prefix
        yield HFTensor(f"{prefix}{keys.embedding}.weight", ("embedding.weight",))
        if config.positions is not None:
            yield HFTensor(f"{prefix}wpe.weight", ("positions.weight",))
        for i, layer in enumerate(config.layers):
            for name, parts, is_transposed in self.layer_tensors(layer):
                ours = tuple(f"layers.{i}.{part}" for part in parts)
                yield HFTensor(f"{prefix}{keys.layers}.{i}.{name}", ours, is_transposed)
        yield HFTensor(f"{prefix}{keys.final_norm}.weight", ("exit.norm.weight",))
        if config.final_norm.kind == "layer":
            yield HFTensor(f"{prefix}{keys.final_norm}.bias", ("exit.norm.bias.weight",))
        if not config.tie_embeddings:
            yield HFTensor("lm_head.weight", ("head.weight",))


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

    activations: ClassVar = {
        "gelu_new": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "gelu": "gelu",
        "relu": "relu",
        "relu2": "relu2",
        "silu": "silu",
        "swish": "silu",
    }
    """Names of transformers -> ours; of several names for one function the first is written."""
    matrices: ClassVar = {
        "attn.c_attn": ("attention.w_q", "attention.w_k", "attention.w_v"),
        "attn.c_proj": ("attention.w_o",),
        "mlp.c_fc": ("ffn.w_up",),
        "mlp.c_proj": ("ffn.w_down",),
    }
    norms: ClassVar = {"ln_1": ("attention.norm",), "ln_2": ("ffn.norm",)}

    def claims(self, config: ModelConfig) -> bool:
        return config.positions is not None or config.final_norm.kind == "layer"

    def n_positions(self, fields: Fields) -> int:
        return fields.size("n_positions", 1024)

    def positions(self, fields: Fields) -> LearnedPositionsConfig:
        return LearnedPositionsConfig(n_positions=self.n_positions(fields))

    def check_options(self, fields: Fields) -> None:
        fields.only("add_cross_attention", False)

    def ffn(self, fields: Fields, d_model: int) -> MLPConfig:
        activation: Any = self.activations[fields.choice("activation_function", self.activations, "gelu_new")]
        return MLPConfig(d_ff=fields.width("n_inner", 4 * d_model), activation=activation, bias=True)

    def attention(self, fields: Fields, norm: NormConfig, layer: int) -> AttentionConfig:
        n_heads, d_model = fields.size("n_head"), norm.norm_dim
        if d_model % n_heads:
            fields.refuse("n_head", f"a divisor of n_embd = {d_model}")
        head_dim = d_model // n_heads
        scale = head_dim**-0.5 if fields.flag("scale_attn_weights", True) else 1.0
        if fields.flag("scale_attn_by_inverse_layer_idx", False):
            scale /= layer + 1
        return AttentionConfig(
            n_heads=n_heads,
            n_kv_heads=n_heads,
            head_dim=head_dim,
            scale=scale,
            rope_base=None,
            bias=True,
            out_bias=True,
        )

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        names = {ours: theirs for theirs, ours in reversed(self.activations.items())}
        return {
            **super().write(config, n_positions),
            "n_positions": n_positions if config.positions is None else config.positions.n_positions,
            "activation_function": names[getattr(config.layers[0].ffn, "activation", "gelu_tanh")],
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        }

    def check_written(self, fields: Fields) -> None:
        d_model, n_heads = fields.width("n_embd"), fields.size("n_head")
        if d_model % n_heads:
            raise UserError(f"d_model: got {d_model}; in gpt2 it is n_heads * head_dim, with n_heads = {n_heads}")

    def layer_tensors(self, layer: LayerConfig) -> Iterator[HFTensor]:
        for name, parts in (self.norms | self.matrices).items():
            yield HFTensor(f"{name}.weight", tuple(f"{part}.weight" for part in parts), name in self.matrices)
            yield HFTensor(f"{name}.bias", tuple(f"{part}.bias.weight" for part in parts))


PROJECTIONS = {"w_q": "q_proj", "w_k": "k_proj", "w_v": "v_proj", "w_o": "o_proj"}
FEED_FORWARD = {"w_gate": "gate_proj", "w_up": "up_proj", "w_down": "down_proj"}


class RotaryDecoder(Family):
    """Rotary positions, RMSNorm and SwiGLU."""

    base_prefix = "model."
    buffers = r".*rotary_emb\.inv_freq"
    keys = Keys(
        d_model="hidden_size",
        d_ff="intermediate_size",
        n_layers="num_hidden_layers",
        n_heads="num_attention_heads",
        eps="rms_norm_eps",
        embedding="embed_tokens",
        layers="layers",
        final_norm="norm",
    )
    norm_names: ClassVar[tuple[str, str]] = ("input_layernorm", "post_attention_layernorm")
    """Norms of attention and feed-forward."""

    def biases(self, fields: Fields) -> tuple[bool, bool]:
        """Return True for biases of w_q, w_k and w_v, and for one of w_o."""
        has_all = fields.flag("attention_bias", False)
        return has_all, has_all

    def qk_norm(self, eps: float) -> QKNormConfig | None:
        return None

    def head_dim(self, fields: Fields) -> int:
        """Read the head size, by default hidden_size / num_attention_heads."""
        return fields.width("head_dim", max(1, fields.width("hidden_size") // fields.size("num_attention_heads")))

    def check_options(self, fields: Fields) -> None:
        fields.only("hidden_act", "silu")

    def ffn(self, fields: Fields, d_model: int) -> SwiGLUConfig:
        return SwiGLUConfig(d_ff=fields.width("intermediate_size"))

    def attention(self, fields: Fields, norm: NormConfig, layer: int) -> AttentionConfig:
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
            qk_norm=self.qk_norm(norm.eps),
        )

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        attention = config.layers[0].attention
        return {
            **super().write(config, n_positions),
            "num_key_value_heads": attention.n_kv_heads,
            "head_dim": attention.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": n_positions,
            "attention_bias": attention.bias,
            "attention_dropout": 0.0,
            **({} if attention.rope is None else write_rope(attention.rope, n_positions)),
        }

    def layer_tensors(self, layer: LayerConfig) -> Iterator[HFTensor]:
        attention = layer.attention
        has_bias = dict.fromkeys(("w_q", "w_k", "w_v"), attention.bias) | {"w_o": attention.out_bias}
        for part, name in zip(("attention", "ffn"), self.norm_names):
            yield HFTensor(f"{name}.weight", (f"{part}.norm.weight",))
        for ours, theirs in PROJECTIONS.items():
            yield HFTensor(f"self_attn.{theirs}.weight", (f"attention.{ours}.weight",))
            if has_bias[ours]:
                yield HFTensor(f"self_attn.{theirs}.bias", (f"attention.{ours}.bias.weight",))
        for norm in () if attention.qk_norm is None else ("q_norm", "k_norm"):
            yield HFTensor(f"self_attn.{norm}.weight", (f"attention.{norm}.weight",))
        for ours, theirs in FEED_FORWARD.items():
            yield HFTensor(f"mlp.{theirs}.weight", (f"ffn.{ours}.weight",))


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
    norm_names = ("post_attention_layernorm", "post_feedforward_layernorm")

    def claims(self, config: ModelConfig) -> bool:
        return config.layers[0].norm_placement == "reordered"

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

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        return {**super().write(config, n_positions), "use_sliding_window": False}


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
        return written


class Qwen3(_Qwen):
    model_type = "qwen3"
    class_name = "Qwen3ForCausalLM"

    def claims(self, config: ModelConfig) -> bool:
        return config.layers[0].attention.qk_norm is not None

    def head_dim(self, fields: Fields) -> int:
        return fields.width("head_dim", 128)

    def qk_norm(self, eps: float) -> QKNormConfig:
        return QKNormConfig(eps=eps, over="head")
