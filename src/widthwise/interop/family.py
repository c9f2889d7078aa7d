"""The interface of a family of transformers whose layers have equal sizes, and a base class with rotary positions."""

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

from widthwise.interop.architecture import DEFAULT_BASE, Architecture, Fields, HFTensor, read_rope, write_rope
from widthwise.kernels.rotary import Rope
from widthwise.mistakes import UserError
from widthwise.model.attention import AttentionConfig
from widthwise.model.config import InitConfig, LearnedPositionsConfig, ModelConfig
from widthwise.model.ffn.interface import FFNConfig
from widthwise.model.ffn.swiglu import SwiGLUConfig
from widthwise.model.layer import LayerConfig
from widthwise.model.norm import NormConfig, NormKind, Placement, QKNormConfig
from widthwise.sizes import MOST_LAYERS, WIDEST


class Keys(NamedTuple):
    """Names of a family, by default Llama's: keys of sizes in config.json, for reading and writing, and modules."""

    d_model: str = "hidden_size"
    d_ff: str = "intermediate_size"
    n_layers: str = "num_hidden_layers"
    n_heads: str = "num_attention_heads"
    eps: str = "rms_norm_eps"
    embedding: str = "embed_tokens"
    """Name of a module, like the following fields."""
    layers: str = "layers"
    final_norm: str = "norm"


class Family(Architecture):
    """A family whose layers have equal sizes."""

    keys: ClassVar[Keys] = Keys()
    norm_kind: ClassVar[NormKind] = "rms"
    default_eps: ClassVar[float | None] = None
    """None: required in config.json."""
    placement: ClassVar[Placement] = "pre"
    gain_offset: ClassVar[float] = 0.0
    ties_by_default: ClassVar[bool] = False
    depth_scaled: ClassVar[bool] = False
    learns_positions: ClassVar[bool] = False
    heads_divide_width: ClassVar[bool] = False
    """True if transformers requires n_heads to divide d_model, even if head_dim is given."""
    fixed: ClassVar[dict[str, Any]] = {}
    """Options of the family -> the only value that our models support."""

    @abstractmethod
    def attention(self, fields: Fields, norm: NormConfig, layer: int) -> AttentionConfig:
        """Read the attention of a layer, counted from 0. norm: the norm before it."""

    @abstractmethod
    def ffn(self, fields: Fields, d_model: int, layer: int) -> FFNConfig:
        """Read the feed-forward of a layer."""

    def multipliers(self, fields: Fields) -> dict[str, Any]:
        """Read multipliers and caps, as fields of ModelConfig."""
        return {}

    @abstractmethod
    def layer_tensors(self, layer: LayerConfig) -> Iterator[HFTensor]:
        """Yield the tensors of a layer. Their names and their parts' names begin inside the layer."""

    def read(self, fields: Fields) -> ModelConfig:
        for key, value in self.fixed.items():
            fields.only(key, value)
        d_model = fields.size(self.keys.d_model, most=WIDEST)
        eps = fields.positive(self.keys.eps, self.default_eps)
        norm = NormConfig(kind=self.norm_kind, eps=eps, norm_dim=d_model, gain_offset=self.gain_offset)
        vocab_size = fields.size("vocab_size")
        sizes = {"d_model": d_model, "d_in": d_model, "d_out": d_model}
        norms = {"norm_placement": self.placement, "attention_norm": norm, "ffn_norm": norm}
        layers = []
        for i in range(fields.size(self.keys.n_layers, most=MOST_LAYERS)):
            attention = self.attention(fields, norm, i)
            layers.append(LayerConfig(**sizes, **norms, attention=attention, ffn=self.ffn(fields, d_model, i)))
        return ModelConfig(
            vocab_size=vocab_size,
            d_model=d_model,
            layers=tuple(layers),
            final_norm=norm,
            final_norm_width=d_model,
            positions=LearnedPositionsConfig(n_positions=self.n_positions(fields)) if self.learns_positions else None,
            tie_embeddings=fields.flag("tie_word_embeddings", self.ties_by_default),
            init=InitConfig(std=fields.positive("initializer_range", 0.02), depth_scaled=self.depth_scaled),
            **self.multipliers(fields),
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
            for tensor in self.layer_tensors(layer):
                parts = tuple(f"layers.{i}.{part}" for part in tensor.parts)
                yield tensor._replace(name=f"{prefix}{keys.layers}.{i}.{tensor.name}", parts=parts)
        yield HFTensor(f"{prefix}{keys.final_norm}.weight", ("exit.norm.weight",))
        if config.final_norm.kind == "layer":
            yield HFTensor(f"{prefix}{keys.final_norm}.bias", ("exit.norm.bias.weight",))
        if not config.tie_embeddings:
            yield HFTensor("lm_head.weight", ("head.weight",))


Stacks = Mapping[str, tuple[str, ...]]
"""Name of a stored matrix -> our matrices that it stacks."""


class RotaryDecoder(Family):
    """RMSNorm, rotary positions in most or all layers, and gated feed-forwards or mixtures of them."""

    base_prefix = "model."
    buffers = r".*rotary_emb\.inv_freq"
    default_eps = 1e-6
    norm_names: ClassVar[dict[str, str]] = {
        "attention.norm": "input_layernorm",
        "ffn.norm": "post_attention_layernorm",
    }
    """Our names of the norms of a layer -> theirs."""
    projections: ClassVar[Stacks] = {"q_proj": ("w_q",), "k_proj": ("w_k",), "v_proj": ("w_v",), "o_proj": ("w_o",)}
    feed_forward: ClassVar[Stacks] = {"gate_proj": ("w_gate",), "up_proj": ("w_up",), "down_proj": ("w_down",)}
    activation: ClassVar[dict[str, str]] = {"hidden_act": "silu"}
    """Key of the activation in config.json, and the only value that the family supports."""
    fixed: ClassVar = activation
    biases: ClassVar[Literal["none", "qkv", "option"]] = "option"
    """Matrices of attention with biases: none; w_q, w_k and w_v; or all four if `attention_bias` is true."""
    qk_norm: ClassVar[Literal["head", "all_heads"] | None] = None
    """Coordinates over which queries and keys are normalised; None: no QK-norm."""
    default_head_dim: ClassVar[int | None] = None
    """Default head_dim; None: hidden_size / num_attention_heads."""
    kv_heads_by_default: ClassVar[bool] = True
    """True if a missing num_key_value_heads means num_attention_heads, as null always does; False: it is required."""
    default_rope_base: ClassVar[float] = DEFAULT_BASE
    scale_is_free: ClassVar[bool] = False
    """True if config.json has the factor of the scores; False: it is 1/sqrt(head_dim), unless yarn changes it."""
    extra_keys: ClassVar[dict[str, Any]] = {}
    """Entries that `write` adds to config.json."""

    def window(self, fields: Fields, layer: int) -> int | None:
        """Read the window of a layer in tokens; None: the layer attends to all earlier tokens."""
        return None

    def ffn(self, fields: Fields, d_model: int, layer: int) -> FFNConfig:
        return SwiGLUConfig(d_ff=fields.size("intermediate_size", most=WIDEST))

    def scale(self, fields: Fields, head_dim: int) -> float:
        """Read the factor of the scores."""
        return head_dim**-0.5

    def rotation(self, fields: Fields, layer: int, head_dim: int) -> tuple[Rope | None, float]:
        """Read the rotary positions of a layer, None if it has none, and the factor of rotated queries and keys."""
        return read_rope(fields, head_dim, self.default_rope_base)

    def write_rotations(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        """Return the entries of config.json for the rotary positions."""
        for layer in config.layers:
            if layer.attention.rope is not None:
                return write_rope(layer.attention.rope, n_positions, self.query_factor(layer.attention))
        return {}

    def query_factor(self, attention: AttentionConfig) -> float:
        """Return the factor of rotated queries and keys; its square times 1/sqrt(head_dim) is the factor of scores."""
        return 1.0 if self.scale_is_free else round(math.sqrt(attention.scale * math.sqrt(attention.head_dim)), 13)

    def attention(self, fields: Fields, norm: NormConfig, layer: int) -> AttentionConfig:
        n_heads = fields.size("num_attention_heads")
        default_head_dim = self.default_head_dim or max(1, fields.size("hidden_size", most=WIDEST) // n_heads)
        head_dim = fields.size("head_dim", default_head_dim, most=WIDEST)
        rope, query_factor = self.rotation(fields, layer, head_dim)
        has_default = self.kv_heads_by_default or fields.has("num_key_value_heads")
        has_all_biases = self.biases == "option" and fields.flag("attention_bias", False)
        qk_norm = None
        if self.qk_norm is not None:
            qk_norm = QKNormConfig(eps=norm.eps, over=self.qk_norm, gain_offset=norm.gain_offset)
        return AttentionConfig(
            n_heads=n_heads,
            n_kv_heads=fields.size("num_key_value_heads", n_heads if has_default else None),
            head_dim=head_dim,
            scale=self.scale(fields, head_dim) * query_factor**2,
            rope_base=None if rope is None else rope.base,
            rope_frequencies=None if rope is None else rope.frequencies,
            bias=self.biases == "qkv" or has_all_biases,
            out_bias=has_all_biases,
            window=self.window(fields, layer),
            qk_norm=qk_norm,
        )

    def write(self, config: ModelConfig, n_positions: int) -> dict[str, Any]:
        attention = config.layers[0].attention
        written = {
            **super().write(config, n_positions),
            "num_key_value_heads": attention.n_kv_heads,
            "head_dim": attention.head_dim,
            **self.activation,
            "max_position_embeddings": n_positions,
        }
        if self.biases == "option":
            written["attention_bias"] = attention.bias
        written["attention_dropout"] = 0.0
        return {**written, **self.write_rotations(config, n_positions), **self.extra_keys}

    def layer_tensors(self, layer: LayerConfig) -> Iterator[HFTensor]:
        attention = layer.attention
        for ours, theirs in self.norm_names.items():
            yield HFTensor(f"{theirs}.weight", (f"{ours}.weight",))
        for name, parts in self.projections.items():
            yield HFTensor(f"self_attn.{name}.weight", tuple(f"attention.{part}.weight" for part in parts))
            has_bias = attention.out_bias if name == "o_proj" else attention.bias
            if has_bias:
                yield HFTensor(f"self_attn.{name}.bias", tuple(f"attention.{part}.bias.weight" for part in parts))
        if attention.qk_norm is not None:
            for norm in ("q_norm", "k_norm"):
                yield HFTensor(f"self_attn.{norm}.weight", (f"attention.{norm}.weight",))
        yield from self.ffn_tensors(layer)

    def ffn_tensors(self, layer: LayerConfig) -> Iterator[HFTensor]:
        """Yield the matrices of the feed-forward of a layer, named as in `layer_tensors`."""
        for name, parts in self.feed_forward.items():
            yield HFTensor(f"mlp.{name}.weight", tuple(f"ffn.{part}.weight" for part in parts))
