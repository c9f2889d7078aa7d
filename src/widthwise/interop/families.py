"""The families of transformers: GPT-2, and Llama, Qwen 2, Qwen 3 and OLMo 2 with rotary positions.

A family has one table with the keys of its sizes in config.json, for reading and writing.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Literal, NamedTuple

from widthwise.interop.architecture import Architecture, Fields, HFTensor, read_rope, write_rope
from widthwise.mistakes import UserError
from widthwise.model.attention import AttentionConfig
from widthwise.model.config import InitConfig, LearnedPositionsConfig, ModelConfig
from widthwise.model.ffn.mlp import MLPConfig
from widthwise.model.ffn.swiglu import SwiGLUConfig
from widthwise.model.layer import LayerConfig
from widthwise.model.norm import NormConfig, NormKind, Placement, QKNormConfig
from widthwise.sizes import MOST_LAYERS, WIDEST


class Keys(NamedTuple):
    """The keys of the sizes of a family, and the names of its modules outside the layers."""

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
    learns_positions: ClassVar[bool] = False
    heads_divide_width: ClassVar[bool] = False
    """True if transformers refuses any other number of heads, even if head_dim is given."""
    fixed: ClassVar[dict[str, Any]] = {}
    """Options of the family -> the only value that our models support."""

    @abstractmethod
    def attention(self, fields: Fields, norm: NormConfig, layer: int) -> AttentionConfig:
        """Read the attention of a layer. norm: of the stream."""

    @abstractmethod
    def ffn(self, fields: Fields, d_model: int) -> SwiGLUConfig | MLPConfig:
        """Read the feed-forward."""

    @abstractmethod
    def layer_tensors(self, layer: LayerConfig) -> Iterator[HFTensor]:
        """Yield the tensors of a layer, with names inside the layer on both sides."""

    def read(self, fields: Fields) -> ModelConfig:
        for key, value in self.fixed.items():
            fields.only(key, value)
        d_model = fields.size(self.keys.d_model, most=WIDEST)
        norm = NormConfig(kind=self.norm_kind, eps=fields.positive(self.keys.eps, self.default_eps), norm_dim=d_model)
        ffn = self.ffn(fields, d_model)
        sizes = {"d_model": d_model, "d_in": d_model, "d_out": d_model}
        norms = {"norm_placement": self.placement, "attention_norm": norm, "ffn_norm": norm}
        return ModelConfig(
            vocab_size=fields.size("vocab_size"),
            d_model=d_model,
            layers=tuple(
                LayerConfig(**sizes, **norms, attention=self.attention(fields, norm, i), ffn=ffn)
                for i in range(fields.size(self.keys.n_layers, most=MOST_LAYERS))
            ),
            final_norm=norm,
            final_norm_width=d_model,
            positions=LearnedPositionsConfig(n_positions=self.n_positions(fields)) if self.learns_positions else None,
            tie_embeddings=fields.flag("tie_word_embeddings", self.ties_by_default),
            init=InitConfig(std=fields.positive("initializer_range", 0.02), depth_scaled=self.depth_scaled),
        )

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        keys = self.keys
        layer = config.layers[0]
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

    def check_written(self, fields: Fields) -> None:
        d_model = fields.size(self.keys.d_model)
        n_heads = fields.size(self.keys.n_heads)
        if self.heads_divide_width and d_model % n_heads:
            raise UserError(
                f"d_model: got {d_model}; must be a multiple of n_heads = {n_heads} for a {self.model_type} of "
                "transformers; grow d_model or n_heads"
            )

    def tensors(self, config: ModelConfig) -> Iterator[HFTensor]:
        keys = self.keys
        prefix = self.base_prefix
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

    def ffn(self, fields: Fields, d_model: int) -> MLPConfig:
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


PROJECTIONS = {"w_q": "q_proj", "w_k": "k_proj", "w_v": "v_proj", "w_o": "o_proj"}
FEED_FORWARD = {"w_gate": "gate_proj", "w_up": "up_proj", "w_down": "down_proj"}


class RotaryDecoder(Family):
    """Rotary positions, RMSNorm and SwiGLU."""

    base_prefix = "model."
    buffers = r".*rotary_emb\.inv_freq"
    default_eps = 1e-6
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
    fixed: ClassVar = {"hidden_act": "silu"}
    has_qkv_bias: ClassVar[bool] = False
    """True if only w_q, w_k and w_v have biases; otherwise `attention_bias` decides for all matrices."""
    qk_norm: ClassVar[Literal["head", "all_heads"] | None] = None
    """Coordinates over which queries and keys are normalised."""
    usual_head_dim: ClassVar[int | None] = None
    """Default head size; None: hidden_size / num_attention_heads."""
    further_keys: ClassVar[dict[str, Any]] = {}

    def ffn(self, fields: Fields, d_model: int) -> SwiGLUConfig:
        return SwiGLUConfig(d_ff=fields.size("intermediate_size", most=WIDEST))

    def attention(self, fields: Fields, norm: NormConfig, layer: int) -> AttentionConfig:
        n_heads = fields.size("num_attention_heads")
        usual = self.usual_head_dim or max(1, fields.size("hidden_size", most=WIDEST) // n_heads)
        head_dim = fields.size("head_dim", usual, most=WIDEST)
        base, frequencies = read_rope(fields, head_dim)
        has_all = not self.has_qkv_bias and fields.flag("attention_bias", False)
        return AttentionConfig(
            n_heads=n_heads,
            n_kv_heads=fields.size("num_key_value_heads", n_heads),
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope_base=base,
            rope_frequencies=frequencies,
            bias=self.has_qkv_bias or has_all,
            out_bias=has_all,
            qk_norm=QKNormConfig(eps=norm.eps, over=self.qk_norm) if self.qk_norm else None,
        )

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        attention = config.layers[0].attention
        bias = {} if self.has_qkv_bias else {"attention_bias": attention.bias}
        rope = {} if attention.rope is None else write_rope(attention.rope, n_positions)
        return {
            **super().write(config, n_positions),
            "num_key_value_heads": attention.n_kv_heads,
            "head_dim": attention.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": n_positions,
            **bias,
            "attention_dropout": 0.0,
            **rope,
            **self.further_keys,
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
    heads_divide_width = True
    fixed: ClassVar = {**RotaryDecoder.fixed, "mlp_bias": False}


class OLMo2(RotaryDecoder):
    model_type = "olmo2"
    class_name = "Olmo2ForCausalLM"
    default_eps = 1e-5
    placement = "reordered"
    norm_names = ("post_attention_layernorm", "post_feedforward_layernorm")
    qk_norm = "all_heads"


class _Qwen(RotaryDecoder):
    further_keys: ClassVar = {"use_sliding_window": False}

    def read(self, fields: Fields) -> ModelConfig:
        n_layers = fields.size("num_hidden_layers", most=MOST_LAYERS)
        types = fields.get("layer_types")
        if isinstance(types, list):
            if len(types) != n_layers:
                raise UserError(f"{fields.where}: layer_types: has length {len(types)}; must be {n_layers}")
            for i, kind in enumerate(types):
                if kind != "full_attention":
                    raise UserError(f"{fields.where}: layer_types.{i}: got {kind!r}; allowed: 'full_attention'")
        elif types is not None:
            fields.refuse("layer_types", "a list")
        elif ("sliding_window", None) not in fields.entries("sliding_window") and (
            fields.flag("use_sliding_window", False) and fields.size("max_window_layers", 28, least=0) < n_layers
        ):
            fields.refuse("use_sliding_window", "false, because attention reads the whole text")
        return super().read(fields)


class Qwen2(_Qwen):
    model_type = "qwen2"
    class_name = "Qwen2ForCausalLM"
    has_qkv_bias = True


class Qwen3(_Qwen):
    model_type = "qwen3"
    class_name = "Qwen3ForCausalLM"
    usual_head_dim = 128
    qk_norm = "head"


FAMILIES: tuple[Family, ...] = (GPT2(), OLMo2(), Qwen3(), Qwen2(), Llama())


def family_of(config: ModelConfig) -> Family:
    """Return the only family that can express a model, if any; whether it can is checked by reading back."""
    gpt2, olmo2, qwen3, qwen2, llama = FAMILIES
    attention = config.layers[0].attention
    if config.positions is not None or config.final_norm.kind == "layer":
        return gpt2
    if config.layers[0].norm_placement == "reordered":
        return olmo2
    if attention.qk_norm is not None:
        return qwen3
    return qwen2 if attention.bias and not attention.out_bias else llama
