"""A language model whose layers have widths of their own, for transformers.

`config` is a WidthwiseConfig, and `layer` the same with the values of one layer.

Reading order: the stream and what reads and writes it, the norm, attention, the feed-forwards, the layer, the model.
The file needs torch and transformers only.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, silu, softmax
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .configuration_widthwise import WidthwiseConfig


def wide(x: Tensor) -> Tensor:
    """x in fp32, or unchanged if it is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


# The stream. It is (B, T, hidden_size) between all layers; a sublayer reads and writes its first coordinates only, so
# that the others keep what the last layer wide enough to own them left there.


class PlainResidual(nn.Module):
    """The sublayer reads the first d_read coordinates, and its update is added to as many as it has.

    In front of a wider layer the coordinates that become its own stay as they are (`carry`), or become 0 (`zero`) or a
    learned projection of the others (`projection`).
    """

    def __init__(self, residual: dict[str, Any], d_before: int, d_read: int, d_write: int):
        super().__init__()
        self.d_before, self.d_read, self.multiplier = d_before, d_read, residual["multiplier"]
        self.resize = residual["resize"] if d_read > d_before else "carry"
        if self.resize == "projection":
            self.w_widen = nn.Linear(d_before, d_read - d_before, bias=False)

    def read(self, stream: Tensor) -> tuple[Tensor, Tensor]:
        """The input of the sublayer, and what `write` needs."""
        if self.resize != "carry":
            kept, widened = stream[..., : self.d_before], stream[..., self.d_before : self.d_read]
            widened = self.w_widen(kept) if self.resize == "projection" else torch.zeros_like(widened)
            stream = torch.cat((kept, widened.to(stream.dtype), stream[..., self.d_read :]), dim=-1)
        return stream[..., : self.d_read], stream

    def write(self, kept: Tensor, update: Tensor) -> Tensor:
        """The stream with the update in it."""
        d_write = update.shape[-1]
        written = torch.add(kept[..., :d_write], update, alpha=self.multiplier)
        return torch.cat((written, kept[..., d_write:]), dim=-1)


RESIDUALS = {"plain": PlainResidual}


def normalised_width(placement: str, d_read: int, d_write: int) -> int:
    """Coordinates that the norm of a sublayer sees."""
    return {"pre": d_read, "reordered": d_write, "none": 0}[placement]


class Norm(nn.Module):
    """gain * x / sqrt(sum(x^2) / norm_dim + eps), in fp32 or wider; `layer` subtracts the mean first and has a bias.

    `norm_dim` is the number of coordinates, but for a first or last layer that is wider than what it reads, and for a
    model that has grown. `stat_width`: how many coordinates are summed, null for all. `placement` in its sublayer:
    `pre`, in front of it, or `reordered`, on its update.
    """

    def __init__(
        self, width: int, kind: str, eps: float, norm_dim: int, stat_width: int | None = None, placement: str = "pre"
    ):
        super().__init__()
        self.eps, self.norm_dim, self.stat_width, self.placement = eps, norm_dim, stat_width, placement
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if kind == "layer" else None

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., width) -> the same shape and type."""
        y = wide(x)
        if self.bias is not None:
            y = y - y.mean(dim=-1, keepdim=True)
        measured = y[..., : self.stat_width].square().sum(dim=-1, keepdim=True)
        y = y * torch.rsqrt(measured / self.norm_dim + self.eps) * self.weight
        return (y if self.bias is None else y + self.bias).to(x.dtype)

    def before(self, x: Tensor) -> Tensor:
        """The stream -> what the sublayer works on."""
        return self(x) if self.placement == "pre" else x

    def after(self, update: Tensor) -> Tensor:
        """What the sublayer made -> what joins the stream."""
        return self(update) if self.placement == "reordered" else update


class NoNorm(nn.Module):
    """A sublayer without a norm."""

    def before(self, x: Tensor) -> Tensor:
        return x

    def after(self, update: Tensor) -> Tensor:
        return update


def build_norm(placement: str, d_read: int, d_write: int, norm: dict[str, Any]) -> Norm | NoNorm:
    """Of a sublayer that reads d_read coordinates and writes d_write."""
    width = normalised_width(placement, d_read, d_write)
    return Norm(width, **norm, placement=placement) if width else NoNorm()


Rope = tuple[int, float, tuple[float, ...] | None]
"""head_dim, base and the frequencies, where the base does not give them."""


def rope_of(layer: Any) -> Rope | None:
    """How the heads of a layer turn; None where they do not."""
    frequencies = None if layer.rope_frequencies is None else tuple(layer.rope_frequencies)
    return None if layer.rope_theta is None else (layer.head_dim, layer.rope_theta, frequencies)


def rope_table(positions: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angles at positions (B, T): two tensors (B, 1, T, head_dim / 2) in fp32 or wider."""
    head_dim, base, frequencies = rope
    if frequencies is None:
        pairs = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float64)
        radians = base ** -(pairs / head_dim)
    else:
        radians = torch.tensor(frequencies, device=positions.device, dtype=torch.float64)
    angles = positions.to(torch.float64)[:, None, :, None] * radians
    dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates each pair (x_i, x_{i + head_dim/2}) of heads (B, n_heads, T, head_dim)."""
    cos, sin = table
    first, second = x.to(torch.promote_types(x.dtype, cos.dtype)).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """softmax(scaling * q k^T + mask) v, with the weights."""
    groups: int = module.num_key_value_groups  # pyright: ignore[reportAssignmentType]
    key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    scores = query @ key.transpose(-1, -2) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = softmax(wide(scores), dim=-1).to(query.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class WidthwiseAttention(nn.Module):
    """Grouped-query attention with the heads of its layer."""

    def __init__(self, config: Any, layer: Any, layer_idx: int):
        super().__init__()
        self.config, self.layer_idx, self.is_causal = config, layer_idx, True
        self.head_dim, self.v_head_dim = layer.head_dim, layer.v_head_dim or layer.head_dim
        self.num_key_value_groups = layer.num_attention_heads // layer.num_key_value_heads
        self.scaling, self.rope = layer.attention_scale, rope_of(layer)
        self.norm = build_norm(layer.norm_placement, layer.layer_in, layer.layer_width, layer.attention_norm)
        n_queries, n_keys = (n * self.head_dim for n in (layer.num_attention_heads, layer.num_key_value_heads))
        n_values, n_attended = (n * self.v_head_dim for n in (layer.num_key_value_heads, layer.num_attention_heads))
        self.q_proj = nn.Linear(layer.layer_in, n_queries, bias=layer.attention_bias)
        self.k_proj = nn.Linear(layer.layer_in, n_keys, bias=layer.attention_bias)
        self.v_proj = nn.Linear(layer.layer_in, n_values, bias=layer.attention_bias)
        self.o_proj = nn.Linear(n_attended, layer.layer_width, bias=layer.attention_out_bias)
        self.q_norm = self._head_norm(layer.qk_norm, "q_norm_dim", n_queries)
        self.k_norm = self._head_norm(layer.qk_norm, "k_norm_dim", n_keys)

    def _head_norm(self, norm: dict[str, Any] | None, norm_dim: str, n: int) -> Norm | None:
        if norm is None:
            return None
        width = self.head_dim if norm["over"] == "head" else n
        return Norm(width, "rms", norm["eps"], norm[norm_dim] or width)

    def _heads(self, x: Tensor, size: int, norm: Norm | None = None) -> Tensor:
        """(B, T, n * size) -> (B, n, T, size)."""
        if norm is not None:
            x = norm(x.unflatten(-1, (-1, len(norm.weight)))).flatten(-2)
        return x.unflatten(-1, (-1, size)).transpose(1, 2)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None,
        rope_tables: dict[Rope, tuple[Tensor, Tensor]],
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """hidden_states: (B, T, layer_in), the stream -> the update (B, T, layer_width), and the weights if formed."""
        x = self.norm.before(hidden_states)
        query = self._heads(self.q_proj(x), self.head_dim, self.q_norm)
        key = self._heads(self.k_proj(x), self.head_dim, self.k_norm)
        value = self._heads(self.v_proj(x), self.v_head_dim)
        if self.rope is not None:
            query, key = (rotate(x, rope_tables[self.rope]) for x in (query, key))
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        attended, weights = attention(self, query, key, value, attention_mask, scaling=self.scaling, **kwargs)
        return self.norm.after(self.o_proj(attended.flatten(2).contiguous())), weights


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)), with its norm."""

    def __init__(self, d_model: int, d_ff: int, d_out: int, norm: Norm | NoNorm):
        super().__init__()
        self.norm = norm
        self.gate_proj = nn.Linear(d_model, d_ff, bias=False)
        self.up_proj = nn.Linear(d_model, d_ff, bias=False)
        self.down_proj = nn.Linear(d_ff, d_out, bias=False)

    @classmethod
    def of(cls, layer: Any, ffn: dict[str, Any]) -> "SwiGLU":
        return cls(layer.layer_width, ffn["d_ff"], layer.layer_out, ffn_norm(layer))

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """x: (B, T, layer_width), the stream -> the update (B, T, layer_out)."""
        x = self.norm.before(x)
        return self.norm.after(self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x)))


def ffn_norm(layer: Any) -> Norm | NoNorm:
    """The norm of a feed-forward that has one."""
    assert layer.ffn_norm is not None
    return build_norm(layer.norm_placement, layer.layer_width, layer.layer_out, layer.ffn_norm)


FEED_FORWARDS: dict[str, Callable[[Any, dict[str, Any]], nn.Module]] = {"swiglu": SwiGLU.of}


class WidthwiseDecoderLayer(GradientCheckpointingLayer):
    """Attention and feed-forward, each with its norm and its access to the stream."""

    def __init__(self, config: Any, layer_idx: int, d_before: int):
        super().__init__()
        layer = config.per_layer_config[layer_idx]
        width, residual = layer.layer_width, config.residual
        access = RESIDUALS[residual["kind"]]
        self.attention_residual = access(residual, d_before, layer.layer_in, width)
        self.self_attn = WidthwiseAttention(config, layer, layer_idx)
        self.ffn_residual = access(residual, width, width, layer.layer_out)
        self.mlp = FEED_FORWARDS[layer.feed_forward["kind"]](layer, layer.feed_forward)

    def forward(self, hidden_states: Tensor, input_ids: Tensor | None = None, **kwargs: Any) -> Tensor:
        """hidden_states: (B, T, hidden_size) -> the same shape."""
        x, kept = self.attention_residual.read(hidden_states)
        update, _ = self.self_attn(x, **kwargs)
        hidden_states = self.attention_residual.write(kept, update)
        x, kept = self.ffn_residual.read(hidden_states)
        return self.ffn_residual.write(kept, self.mlp(x, input_ids=input_ids))


class WidthwisePreTrainedModel(PreTrainedModel):
    """What transformers asks of the classes below."""

    config_class = WidthwiseConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["WidthwiseDecoderLayer"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_record_outputs = {"hidden_states": WidthwiseDecoderLayer, "attentions": WidthwiseAttention}
    _keys_to_ignore_on_load_unexpected = [r"^mtp\."]


class WidthwiseModel(WidthwisePreTrainedModel):
    """The embedding, the layers and the last norm."""

    def __init__(self, config: Any):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.embedding_size)
        has_positions = config.learned_positions
        self.embed_positions = (
            nn.Embedding(config.max_position_embeddings, config.embedding_size) if has_positions else None
        )
        layers = config.per_layer_config
        before = [config.embedding_size, *(layer.layer_out for layer in layers)]
        self.layers = nn.ModuleList(WidthwiseDecoderLayer(config, i, before[i]) for i in range(len(layers)))
        self.ropes = {rope for layer in layers if (rope := rope_of(layer)) is not None}
        self.norm = Norm(config.final_norm_width, **config.final_norm)
        self.gradient_checkpointing = False
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """input_ids: (B, T), or their rows of the embedding -> normalised hidden states (B, T, embedding_size)."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        rows = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        if position_ids is None:
            n_seen = 0 if past_key_values is None else past_key_values.get_seq_length()
            position_ids = positions_of(rows, attention_mask, n_seen)
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=rows,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            position_ids=position_ids,
        )
        tables = {rope: rope_table(position_ids, rope) for rope in self.ropes}
        hidden_states = self.enter(rows, position_ids)
        for layer in self.layers:
            hidden_states = layer(
                hidden_states,
                input_ids=input_ids,
                attention_mask=mask,
                rope_tables=tables,
                past_key_values=past_key_values,
                **kwargs,
            )
        return BaseModelOutputWithPast(
            last_hidden_state=self.leave(hidden_states), past_key_values=past_key_values if use_cache else None
        )

    def enter(self, rows: Tensor, position_ids: Tensor) -> Tensor:
        """Rows of the embedding -> the stream before the first layer; what no layer has written is 0."""
        rows = rows * self.config.embedding_multiplier
        if self.embed_positions is not None:
            rows = rows + self.embed_positions(position_ids)
        return pad(rows, (0, self.config.hidden_size - rows.shape[-1]))

    def leave(self, stream: Tensor) -> Tensor:
        """The stream after the last layer -> what the head reads; coordinates beyond the norm pass as they are."""
        n, d_model = self.config.final_norm_width, self.config.embedding_size
        return torch.cat((self.norm(stream[..., :n]), stream[..., n:]), dim=-1)[..., :d_model]


def positions_of(rows: Tensor, attention_mask: Tensor | None, n_seen: int) -> Tensor:
    """(B or 1, T): the number of real tokens in front of each, where a mask (B, S) says which are real."""
    n_new = rows.shape[1]
    if attention_mask is not None and attention_mask.dim() == 2:
        return (attention_mask.long().cumsum(dim=1) - 1).clamp(min=0)[:, -n_new:]
    return torch.arange(n_seen, n_seen + n_new, device=rows.device)[None]


class WidthwiseForCausalLM(WidthwisePreTrainedModel, GenerationMixin):
    """The model with its head."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: Any):
        super().__init__(config)
        self.model = WidthwiseModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.embedding_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """input_ids: (B, T) -> logits (B, T, vocab_size), and the loss of `labels`, which transformers shifts."""
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept]) * self.config.logit_scale
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
