"""A language model whose layers have different widths, for transformers.

`config` is a WidthwiseConfig, and `layer` a WidthwiseConfig with the values of one layer.

Reading order: the norm, the stream and its readers and writers, attention, the feed-forwards, the layer, the model.
The file needs only torch and transformers.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise, permutations
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, linear, pad, relu, silu, softmax
from transformers import GenerationMixin, PreTrainedModel, initialization
from transformers.cache_utils import Cache, DynamicCache
from transformers.masking_utils import create_causal_mask, sliding_window_overlay
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .configuration_widthwise import WidthwiseConfig


def wide(x: Tensor) -> Tensor:
    """Return x in fp32, or unchanged if it is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class Matrix(nn.Module):
    """A linear map for code that reads `weight`. Quantisers and adapters replace an `nn.Linear`, but not this class."""

    def __init__(self, d_in: int, d_out: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_out, d_in))

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., d_in) -> (..., d_out), in the type of x."""
        return linear(x, self.weight.to(x.dtype))


def normalised_width(placement: str, d_read: int, d_write: int) -> int:
    """Return the number of coordinates that the norm of a sublayer covers; with `both`, the norm before it."""
    return {"pre": d_read, "reordered": d_write, "both": d_read, "none": 0}[placement]


class Norm(nn.Module):
    """gain * x / sqrt(sum(x^2) / norm_dim + eps), in fp32 or wider.

    width: number of coordinates; 0 means no norm. kind: `rms`, or `layer`, which first subtracts the mean and has a
    bias. norm_dim: equals width, except in a first or last layer that is wider than its input, and in a grown model.
    stat_width: number of leading coordinates in the sum, None for all. gain_offset: added to the weight. placement:
    `pre` or `both`, before the sublayer, `reordered`, on its update, or `none`; with `both`, `post` is the norm of the
    update.
    """

    weight: Any

    def __init__(
        self,
        width: int,
        kind: str,
        eps: float,
        norm_dim: int,
        stat_width: int | None = None,
        gain_offset: float = 0.0,
        placement: str = "pre",
    ):
        super().__init__()
        self.eps = eps
        self.norm_dim = norm_dim
        self.stat_width = stat_width
        self.placement = placement
        self.gain_offset = gain_offset
        self.post: Norm | None = None
        self.weight = nn.Parameter(torch.full((width,), 1.0 - gain_offset)) if width else None
        self.bias = nn.Parameter(torch.zeros(width)) if width and kind == "layer" else None

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., width) -> the same shape and type."""
        y = wide(x)
        if self.bias is not None:
            y = y - y.mean(dim=-1, keepdim=True)
        measured = y[..., : self.stat_width].square().sum(dim=-1, keepdim=True)
        gain = wide(self.weight) + self.gain_offset if self.gain_offset else self.weight
        y = y * torch.rsqrt(measured / self.norm_dim + self.eps) * gain
        return (y if self.bias is None else y + self.bias).to(x.dtype)

    def before(self, x: Tensor) -> Tensor:
        """Return the input of the sublayer from the stream."""
        return x if self.placement in ("reordered", "none") else self(x)

    def after(self, update: Tensor) -> Tensor:
        """Return the update of the stream from the output of the sublayer."""
        if self.post is not None:
            return self.post(update)
        return self(update) if self.placement == "reordered" else update


def build_norm(placement: str, d_read: int, d_write: int, norm: dict[str, Any]) -> Norm:
    """Build the norms of a sublayer that reads d_read coordinates and writes d_write."""
    built = Norm(normalised_width(placement, d_read, d_write), **norm, placement=placement)
    if placement == "both":
        built.post = Norm(d_write, **{**norm, "stat_width": None})
    return built


# The stream is (B, T, hidden_size) between all layers.


class Mixture(Matrix):
    """A matrix from the embedding to the slots, or from the slots to the head; kind `slot` mixes whole slots."""

    def __init__(self, kind: str, d_in: int, d_out: int, slot_width: int):
        width = slot_width if kind == "slot" else 1
        super().__init__(d_in // width, d_out // width)
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., d_in) -> (..., d_out)."""
        if self.width == 1:
            return super().forward(x)
        return (self.weight.to(x.dtype) @ x.unflatten(-1, (-1, self.width))).flatten(-2)


def sum_of_groups(stream: Tensor, d_model: int) -> Tensor:
    """Sum all groups of d_model coordinates."""
    return wide(stream).unflatten(-1, (-1, d_model)).sum(dim=-2).to(stream.dtype)


class GroupNorm(nn.Module):
    """Normalise every `group` consecutive coordinates of the stream, with a gain for each coordinate."""

    def __init__(self, kind: str, group: int, width: int, eps: float, norm_dim: int):
        super().__init__()
        self.group = group
        self.norm = Norm(width, "rms", eps, norm_dim)
        self.bias = nn.Parameter(torch.zeros(width)) if kind == "layer" else None

    def forward(self, stream: Tensor) -> Tensor:
        groups = wide(stream).unflatten(-1, (-1, self.group))
        if self.bias is not None:
            groups = groups - groups.mean(dim=-1, keepdim=True)
        inverse = torch.rsqrt(groups.square().sum(dim=-1, keepdim=True) / self.norm.norm_dim + self.norm.eps)
        y = (groups * inverse).flatten(-2) * self.norm.weight
        return (y if self.bias is None else y + self.bias).to(stream.dtype)


class Ends(NamedTuple):
    """Functions between the stream and the embedding, and between the stream and the head."""

    n_columns: int
    """Columns of the embedding matrix."""
    entry: Mixture | None = None
    n_copies: int = 1
    """Number of copies of the embedding in the first stream."""
    group_norm: GroupNorm | None = None
    reduce: Callable[[Tensor], Tensor] | None = None


class PlainResidual(nn.Module):
    """The sublayer reads the first d_read coordinates of the stream, and its update is added to the first d_write.

    All other coordinates stay unchanged. If a layer is wider than the previous one (d_read > d_before), the additional
    coordinates keep their older values (`carry`), become 0 (`zero`) or become a learned projection of the first
    d_before (`projection`); with `full_projection` all d_read coordinates become a learned projection.
    """

    def __init__(self, residual: dict[str, Any], d_before: int, d_read: int, d_write: int):
        super().__init__()
        self.d_before = d_before
        self.d_read = d_read
        self.multiplier = residual["multiplier"]
        self.resize = residual["resize"] if d_read > d_before else "carry"
        n_projected = {"projection": d_read - d_before, "full_projection": d_read}.get(self.resize)
        if n_projected is not None:
            self.w_widen = nn.Linear(d_before, n_projected, bias=False)

    @staticmethod
    def ends(config: Any) -> Ends:
        return Ends(config.embedding_size)

    def read(self, stream: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input of the sublayer, and the resized stream for `write`."""
        if self.resize != "carry":
            first = stream[..., : self.d_before]
            if self.resize == "zero":
                widened = torch.zeros_like(stream[..., self.d_before : self.d_read])
            else:
                widened = self.w_widen(first).to(stream.dtype)
            pieces = (widened,) if self.resize == "full_projection" else (first, widened)
            stream = torch.cat((*pieces, stream[..., self.d_read :]), dim=-1)
        return stream[..., : self.d_read], stream

    def write(self, stream: Tensor, update: Tensor) -> Tensor:
        """Return the stream with the update. stream: from `read`."""
        d_write = update.shape[-1]
        written = torch.add(stream[..., :d_write], update, alpha=self.multiplier)
        return torch.cat((written, stream[..., d_write:]), dim=-1)


class HyperConnection(nn.Module):
    """The stream is n slots of equal width; the sublayer reads and writes learned mixtures of them.

    A table of n rows [read | carry | write] holds the weights of all three mixtures, the carry as the deviation from
    the identity. With `dynamic` each token adds scale * tanh(slot / rms(slot) * gain / sqrt(slot_width) * matrix).
    """

    def __init__(self, residual: dict[str, Any], d_before: int, d_read: int, d_write: int):
        super().__init__()
        self.slot_width = residual["slot_width"]
        self.n_slots = residual["n_slots"]
        self.multiplier = residual["multiplier"]
        self.n_read = d_read // self.slot_width
        self.n_write = d_write // self.slot_width
        self.has_one_write = residual.get("writes") == "own"  # one weight per slot, for one block of the update
        self.n_coefficients = self.n_read + self.n_slots + (1 if self.has_one_write else self.n_write)
        self.static = nn.Parameter(torch.zeros(self.n_slots * self.n_coefficients))
        self.dynamic = self.scale = None
        self.root = 1.0
        if residual["dynamic"]:
            norm_dim = residual["slot_norm_dim"] or self.slot_width
            self.eps = residual["eps"] * (norm_dim / self.slot_width)
            self.norm = Norm(self.slot_width, "rms", residual["eps"], norm_dim)
            self.dynamic = Matrix(self.slot_width, self.n_coefficients)
            n_scales = self.n_slots * self.n_coefficients
            if residual.get("scale") == "numbers":
                n_scales = 2
                self.root = math.sqrt(norm_dim)
            self.scale = nn.Parameter(torch.ones(n_scales))

    @staticmethod
    def ends(config: Any) -> Ends:
        residual = config.residual
        width = config.hidden_size
        d_model = config.embedding_size
        embedding = residual["embedding"]
        b = residual["slot_width"]
        entry = Mixture(embedding, d_model, width, b) if embedding in ("expand", "slot") else None
        n_copies = width // d_model if embedding == "copies" else 1
        group_norm = None
        if residual["group_norm"]:
            norm_dim = residual["group_norm_dim"] or d_model
            group_norm = GroupNorm(residual["group_norm"], d_model, width, config.final_norm["eps"], norm_dim)
        reduce = partial(sum_of_groups, d_model=d_model)
        if residual["reduce"] != "sum":
            reduce = Mixture(residual["reduce"], width, d_model, b)
        return Ends(width if embedding == "direct" else d_model, entry, n_copies, group_norm, reduce)

    def coefficients(self, slots: Tensor) -> Tensor:
        """slots: (B, T, n_slots, slot_width), fp32 or wider -> (n_slots, n_coefficients), or one for each token."""
        table = self.static.view(self.n_slots, self.n_coefficients).to(slots.dtype)
        if self.dynamic is not None and self.scale is not None:
            matrix = (self.norm.weight * (self.root / math.sqrt(self.slot_width)))[:, None] * self.dynamic.weight.T
            inverse_rms = torch.rsqrt(slots.square().mean(dim=-1, keepdim=True) + self.eps)
            if len(self.scale) > 2:
                scale = self.scale.view(self.n_slots, self.n_coefficients)
            else:  # one scale for reads and carries, one for writes
                n_mixed = self.n_read + self.n_slots
                sizes = n_mixed, self.n_coefficients - n_mixed
                scale = torch.cat([number.expand(n) for number, n in zip(self.scale.split(1), sizes)])[None]
            table = scale * torch.tanh(inverse_rms * (slots @ matrix.to(slots.dtype))) + table
        if not self.has_one_write:
            return table
        blocks = torch.arange(self.n_slots, device=table.device) % self.n_write  # the block that is added to each slot
        writes = nn.functional.one_hot(blocks, self.n_write).to(table.dtype) * table[..., -1:]
        return torch.cat((table[..., :-1], writes), dim=-1)

    def read(self, stream: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the input of the sublayer, and the state for `write`."""
        slots = wide(stream).unflatten(-1, (self.n_slots, self.slot_width))
        coefficients = self.coefficients(slots)
        x = coefficients[..., : self.n_read].transpose(-1, -2) @ slots
        return x.flatten(-2).to(stream.dtype), (stream, coefficients)

    def write(self, state: tuple[Tensor, Tensor], update: Tensor) -> Tensor:
        """Return the stream with the update. state: from `read`."""
        stream, coefficients = state
        slots = stream.to(coefficients.dtype).unflatten(-1, (self.n_slots, self.slot_width))
        blocks = update.to(coefficients.dtype).unflatten(-1, (-1, self.slot_width))
        _, carry, write = coefficients.split((self.n_read, self.n_slots, blocks.shape[-2]), dim=-1)
        written = slots + carry.transpose(-1, -2) @ slots + (self.multiplier * write) @ blocks
        return written.flatten(-2).to(stream.dtype)


class Mixing(nn.Module):
    """Coefficients from the normalised state of all slots: scale * (state W^T) + static."""

    def __init__(self, residual: dict[str, Any], sizes: tuple[int, ...]):
        """sizes: number of logits for each scale, the n_slots reads first."""
        super().__init__()
        self.sizes = sizes
        self.n_slots = residual["n_slots"]
        self.norm_dim = self.n_slots * (residual["slot_norm_dim"] or residual["slot_width"])
        self.eps = residual["eps"]
        self.read_eps = residual["coefficient_eps"]
        self.read_shares = residual["read_shares"] or [1.0] * self.n_slots
        self.static = nn.Parameter(torch.zeros(sum(sizes)))
        self.dynamic = Matrix(self.n_slots * residual["slot_width"], sum(sizes))
        self.scale = nn.Parameter(torch.ones(len(sizes)))

    def read(self, stream: Tensor) -> tuple[Tensor, Tensor]:
        """Return one mixture of the slots, and the logits (B, T, sum(sizes)) in fp32 or wider."""
        flat = wide(stream)
        scales = torch.cat([scale.expand(n) for scale, n in zip(self.scale.split(1), self.sizes)])
        inverse_rms = torch.rsqrt(flat.square().sum(dim=-1, keepdim=True) / self.norm_dim + self.eps)
        projected = flat @ (self.dynamic.weight.T * scales).to(flat.dtype)
        logits = inverse_rms * projected + self.static.to(flat.dtype)
        reads = torch.sigmoid(logits[..., : self.n_slots]) + self.read_eps
        reads = logits.new_tensor(self.read_shares) * reads
        x = reads[..., None, :] @ flat.unflatten(-1, (self.n_slots, -1))
        return x.flatten(-2).to(stream.dtype), logits

    def forward(self, stream: Tensor) -> Tensor:
        """Return one mixture of the slots, as before the last norm."""
        return self.read(stream)[0]


class ManifoldConnection(nn.Module):
    """Slots as wide as a layer. The sublayer reads one mixture of them, and the carry is doubly stochastic."""

    def __init__(self, residual: dict[str, Any], d_before: int, d_read: int, d_write: int):
        super().__init__()
        self.residual = residual
        n = residual["n_slots"]
        self.orders = list(permutations(range(n))) if residual["carry"] == "permutations" else None
        self.mixing = Mixing(residual, (n, n, n * n if self.orders is None else len(self.orders)))

    @staticmethod
    def ends(config: Any) -> Ends:
        n_slots = config.residual["n_slots"]
        return Ends(config.embedding_size, n_copies=n_slots, reduce=Mixing(config.residual, (n_slots,)))

    def carry(self, logits: Tensor) -> Tensor:
        """Return (B, T, n, n), whose entry (j, k) is the weight of slot j in the next slot k."""
        n = self.mixing.n_slots
        if self.orders is not None:
            places = nn.functional.one_hot(torch.tensor(self.orders, device=logits.device), n).flatten(1)
            return (softmax(logits, dim=-1) @ places.to(logits.dtype)).unflatten(-1, (n, n))
        eps = self.mixing.read_eps
        entry_eps = eps * sum(self.mixing.read_shares) / n
        carry = softmax(logits.unflatten(-1, (n, n)), dim=-1) + entry_eps
        # Sinkhorn-Knopp, which divides by the sums of columns and of rows in turn.
        for dim in [-2, -1] * (self.residual["n_iterations"] - 1) + [-2]:
            carry = carry / (carry.sum(dim=dim, keepdim=True) + eps)
        return carry

    def read(self, stream: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the input of the sublayer, and the state for `write`."""
        x, logits = self.mixing.read(stream)
        return x, (stream, logits)

    def write(self, state: tuple[Tensor, Tensor], update: Tensor) -> Tensor:
        """Return the stream with the update. state: from `read`."""
        stream, logits = state
        n = self.mixing.n_slots
        slots = stream.to(logits.dtype).unflatten(-1, (n, -1))
        writes = self.residual["multiplier"] * 2 * torch.sigmoid(logits[..., n : 2 * n, None])
        carry = self.carry(logits[..., 2 * n :])
        written = carry.transpose(-1, -2) @ slots + writes * update.to(logits.dtype)[..., None, :]
        return written.flatten(-2).to(stream.dtype)


RESIDUALS = {"plain": PlainResidual, "hyper_connections": HyperConnection, "manifold": ManifoldConnection}


Rope = tuple[int, float, tuple[float, ...] | None]
"""head_dim, base, and the frequencies unless the base gives them."""


def rope_of(layer: Any) -> Rope | None:
    """Return the rotation of the heads of a layer; None if they do not rotate."""
    frequencies = None if layer.rope_frequencies is None else tuple(layer.rope_frequencies)
    return None if layer.rope_theta is None else (layer.head_dim, layer.rope_theta, frequencies)


def rope_table(positions: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the angles at positions (B, T), (B, 1, T, head_dim / 2) in fp32 or wider."""
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
    """Rotate each pair (x_i, x_{i + head_dim/2}) of heads (B, n_heads, T, head_dim)."""
    cos, sin = table
    first, second = x.to(torch.promote_types(x.dtype, cos.dtype)).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def within_window(mask: Tensor, window: int, n_seen: int | Tensor) -> Tensor:
    """Return a mask (B, 1, T, S) in which keys before the window are masked, too.

    mask: bool, or numbers to add to the scores; n_seen: number of tokens in the cache.
    """
    queries = n_seen + torch.arange(mask.shape[-2], device=mask.device)
    is_old = torch.arange(mask.shape[-1], device=mask.device) <= queries[:, None] - window
    return mask & ~is_old if mask.dtype == torch.bool else mask.masked_fill(is_old, torch.finfo(mask.dtype).min)


def soft_capped(x: Tensor, cap: float | None) -> Tensor:
    """Return cap * tanh(x / cap), or x without a cap."""
    return x if cap is None else cap * torch.tanh(x / cap)


def eager_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **kwargs: Any
) -> tuple[Tensor, Tensor]:
    """Return softmax(capped(scaling * q k^T) + mask) v, and the weights. module: a WidthwiseAttention."""
    key, value = (x.repeat_interleave(module.num_key_value_groups, dim=1) for x in (key, value))
    scores = soft_capped(query @ key.transpose(-1, -2) * scaling, module.softcap)
    if mask is not None:
        scores = scores + mask
    weights = softmax(wide(scores), dim=-1).to(query.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class WidthwiseAttention(nn.Module):
    """Grouped-query attention with the heads of its layer."""

    def __init__(self, config: Any, layer: Any, layer_idx: int):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = True
        self.head_dim = layer.head_dim
        self.v_head_dim = layer.v_head_dim or layer.head_dim
        self.num_key_value_groups = layer.num_attention_heads // layer.num_key_value_heads
        self.scaling = layer.attention_scale
        self.sliding_window = layer.attention_window
        self.softcap = layer.attention_score_cap
        self.rope = rope_of(layer)
        self.norm = build_norm(layer.norm_placement, layer.layer_in, layer.layer_width, layer.attention_norm)
        n_heads = layer.num_attention_heads
        n_kv_heads = layer.num_key_value_heads
        d_in = layer.layer_in
        self.q_proj = nn.Linear(d_in, n_heads * self.head_dim, bias=layer.attention_bias)
        self.k_proj = nn.Linear(d_in, n_kv_heads * self.head_dim, bias=layer.attention_bias)
        self.v_proj = nn.Linear(d_in, n_kv_heads * self.v_head_dim, bias=layer.attention_bias)
        self.o_proj = nn.Linear(n_heads * self.v_head_dim, layer.layer_width, bias=layer.attention_out_bias)
        self.q_norm = self._head_norm(layer.qk_norm, "q_norm_dim", n_heads)
        self.k_norm = self._head_norm(layer.qk_norm, "k_norm_dim", n_kv_heads)

    def _head_norm(self, norm: dict[str, Any] | None, norm_dim: str, n_heads: int) -> Norm | None:
        if norm is None:
            return None
        width = self.head_dim if norm["over"] == "head" else n_heads * self.head_dim
        return Norm(width, "rms", norm["eps"], norm[norm_dim] or width, gain_offset=norm["gain_offset"])

    def _heads(self, x: Tensor, size: int, norm: Norm | None = None) -> Tensor:
        """Split x (B, T, n * size) into heads (B, n, T, size), after a norm if given."""
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
        options = {"sliding_window": self.sliding_window, "softcap": self.softcap}  # flash attention reads no mask
        attended, weights = attention(
            self, query, key, value, attention_mask, scaling=self.scaling, **options, **kwargs
        )
        return self.norm.after(self.o_proj(attended.flatten(2).contiguous())), weights


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu_tanh": partial(gelu, approximate="tanh"),
    "relu": relu,
    "relu2": lambda x: relu(x).square(),
    "silu": silu,
}


class FeedForward(nn.Module):
    """down(activation(gate(x)) * up(x)), or without a gate down(activation(up(x))), with its norm."""

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        d_out: int,
        norm: Norm,
        activation: str = "silu",
        gated: bool = True,
        bias: bool = False,
    ):
        super().__init__()
        self.norm = norm
        self.activation = ACTIVATIONS[activation]
        self.gate_proj = nn.Linear(d_model, d_ff, bias=bias) if gated else None
        self.up_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.down_proj = nn.Linear(d_ff, d_out, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, T, layer_width), the stream -> the update (B, T, layer_out)."""
        return self.norm.after(self.down_proj(self.hidden(self.norm.before(x))))

    def hidden(self, x: Tensor) -> Tensor:
        if self.gate_proj is None:
            return self.activation(self.up_proj(x))
        return self.activation(self.gate_proj(x)) * self.up_proj(x)


def ffn_norm(layer: Any) -> Norm:
    """Build the norm of a feed-forward."""
    return build_norm(layer.norm_placement, layer.layer_width, layer.layer_out, layer.ffn_norm)


def feed_forward(layer: Any, ffn: dict[str, Any]) -> FeedForward:
    """Build a feed-forward of kind `swiglu` or `mlp`."""
    options = {key: ffn[key] for key in ("activation", "gated", "bias") if key in ffn}
    return FeedForward(layer.layer_width, ffn["d_ff"], layer.layer_out, ffn_norm(layer), **options)


class Hourglass(nn.Module):
    """A stack of narrow SwiGLUs: h = h + block(h). The update is the sum of the blocks."""

    def __init__(self, layer: Any, ffn: dict[str, Any]):
        super().__init__()
        d_model = layer.layer_width
        n_blocks = ffn["n_blocks"]
        widths = ffn["d_hidden"] if isinstance(ffn["d_hidden"], list) else [ffn["d_hidden"]] * n_blocks
        outputs = [d_model] * (n_blocks - 1) + [layer.layer_out]
        placement = layer.norm_placement
        layer_norm_width = normalised_width(placement, d_model, layer.layer_out)
        self.blocks = nn.ModuleList()
        for d_hidden, d_write in zip(widths, outputs):
            # If a norm is n coordinates wider than the layer's, its norm_dim is larger by n, too.
            n = normalised_width(placement, d_model, d_write) - layer_norm_width
            norm = {**layer.ffn_norm, "norm_dim": layer.ffn_norm["norm_dim"] + n}
            self.blocks.append(FeedForward(d_model, d_hidden, d_write, build_norm(placement, d_model, d_write, norm)))

    def forward(self, x: Tensor) -> Tensor:
        first, *later = self.blocks
        total = first(x)
        for block in later:
            update = block(x + total)
            total = total[..., : update.shape[-1]] + update
        return total


class MoE(nn.Module):
    """The sum over the top_k experts of weight * expert(x), and of a shared expert if any.

    The weights are the softmax over the logits of the chosen experts, or of all experts. There is no auxiliary loss.
    Each projection stacks the matrices of all experts along the rows.
    """

    def __init__(self, layer: Any, ffn: dict[str, Any]):
        super().__init__()
        d_model = layer.layer_width
        d_out = layer.layer_out
        self.n_experts = ffn["n_experts"]
        self.top_k = ffn["top_k"]
        self.normalised = ffn.get("normalised", True)
        self.norm = ffn_norm(layer)
        self.router = Matrix(d_model, self.n_experts)
        self.gate_proj = Matrix(d_model, self.n_experts * ffn["d_expert"])
        self.up_proj = Matrix(d_model, self.n_experts * ffn["d_expert"])
        self.down_proj = Matrix(ffn["d_expert"], self.n_experts * d_out)
        inside = build_norm("none", d_model, d_out, layer.ffn_norm)
        self.shared = FeedForward(d_model, ffn["d_shared"], d_out, inside) if ffn["d_shared"] else None
        self.shared_gate = Matrix(d_model, 1) if ffn.get("gated_shared", False) else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm.before(x)
        tokens = x.flatten(0, 1)
        logits = wide(self.router(tokens))
        best, chosen = logits.topk(self.top_k, dim=-1)
        weights = best.softmax(dim=-1) if self.normalised else logits.softmax(dim=-1).gather(-1, chosen)
        projections = (self.gate_proj, self.up_proj, self.down_proj)
        gates, ups, downs = (matrix.weight.unflatten(0, (self.n_experts, -1)) for matrix in projections)
        total = weights.new_zeros(len(tokens), downs.shape[1])
        for expert in range(self.n_experts):
            token, place = (chosen == expert).nonzero(as_tuple=True)
            inputs = tokens[token]
            hidden = silu(linear(inputs, gates[expert])) * linear(inputs, ups[expert])
            total = total.index_add(0, token, linear(hidden, downs[expert]) * weights[token, place, None])
        update = total.to(x.dtype).unflatten(0, x.shape[:2])
        if self.shared is not None:
            shared = self.shared(x)
            update = update + (shared if self.shared_gate is None else torch.sigmoid(self.shared_gate(x)) * shared)
        return self.norm.after(update)


SCORE_EPS = 1e-5
PLAIN_SCORES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "const": lambda x, stream: torch.zeros_like(x[..., 0]),
    "random": lambda x, stream: torch.rand_like(x[..., 0]).clamp(min=2**-25).logit(),
    "raw_mean": lambda x, stream: stream.mean(dim=-1),
}
"""Scores without parameters, from x, the normalised features, and the stream before the norm. `const`: 0, for one
learned width per layer; `random`: logit(u) with u ~ U(0, 1), a control; `raw_mean`: mean(stream)."""


class WidthScore(nn.Module):
    """The score (B, T) that sets the number of hidden units for tokens with features (B, T, d_model)."""

    def __init__(self, score: dict[str, Any], d_model: int):
        super().__init__()
        self.kind = score["kind"]
        self.log_gain = nn.Parameter(torch.zeros(1)) if score.get("learn_gain") else None

    def forward(self, x: Tensor, stream: Tensor) -> Tensor:
        """x: normalised input of the feed-forward; stream: its input before the norm."""
        score = self.before_gain(wide(x), wide(stream))
        return score if self.log_gain is None else wide(self.log_gain).exp() * score

    def before_gain(self, x: Tensor, stream: Tensor) -> Tensor:
        return PLAIN_SCORES[self.kind](x, stream)


class LayerNormMeanScore(WidthScore):
    """mean(LayerNorm(x))."""

    def __init__(self, score: dict[str, Any], d_model: int):
        super().__init__(score, d_model)
        self.scale = nn.Parameter(torch.ones(d_model))
        self.shift = nn.Parameter(torch.zeros(d_model))

    def before_gain(self, x: Tensor, stream: Tensor) -> Tensor:
        return layer_norm(x, x.shape[-1:], wide(self.scale), wide(self.shift), SCORE_EPS).mean(dim=-1)


class LinearScore(WidthScore):
    """The product of a learned vector with the input."""

    def __init__(self, score: dict[str, Any], d_model: int):
        super().__init__(score, d_model)
        self.v = Matrix(d_model, 1)

    def before_gain(self, x: Tensor, stream: Tensor) -> Tensor:
        return self.v(x)[..., 0]


SCORES: dict[str, type[WidthScore]] = {
    **dict.fromkeys(PLAIN_SCORES, WidthScore),
    "ln_mean": LayerNormMeanScore,
    "linear": LinearScore,
}


def unit_centres(sizes: list[int], like: Tensor) -> Tensor:
    """Return the ascending positions of the hidden units, (d_ff,): i + 1/2 for a layer that never grew.

    sizes: number of hidden units at first and after each growth. The units that one growth adds are spread evenly over
    the range of the first ones.
    """
    added = [sizes[0], *(after - before for before, after in pairwise(sizes))]
    odd = [torch.arange(1, 2 * n, 2, dtype=torch.float64, device=like.device) for n in added]
    ranks = torch.cat([numerators * sizes[0] / (2 * n) for numerators, n in zip(odd, added)])
    return ranks.sort().values.to(like.dtype)


class DynamicWidth(FeedForward):
    """A SwiGLU in which each token uses only the hidden units with a centre below its width, a function of its score.

    With a `soft` mask, units count by a sigmoid of the distance.
    """

    def __init__(self, layer: Any, ffn: dict[str, Any]):
        super().__init__(layer.layer_width, ffn["d_ff"], layer.layer_out, ffn_norm(layer))
        self.sizes = [*ffn["grown_from"], ffn["d_ff"]]
        self.min_fraction = ffn["min_fraction"]
        self.score = self.bias = None
        self.mask = ffn["mask"]
        if ffn["mask"]["kind"] != "none":
            self.score = SCORES[ffn["score"]["kind"]](ffn["score"], layer.layer_width)
            self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.score is None or self.bias is None:
            return super().forward(x)
        stream = x
        x = self.norm.before(x)
        level = torch.sigmoid(self.score(x, stream) + wide(self.bias))
        width = self.sizes[0] * (self.min_fraction + (1 - self.min_fraction) * level)
        distance = width[..., None] - unit_centres(self.sizes, width)
        # Training uses the same mask as evaluation. A step has no gradient, so only widthwise can learn widths.
        used = torch.sigmoid(distance / self.mask["temperature"]) if self.mask["kind"] == "soft" else distance > 0
        hidden = self.hidden(x)
        return self.norm.after(self.down_proj(hidden * used.to(hidden.dtype)))


FEED_FORWARDS: dict[str, Callable[[Any, dict[str, Any]], nn.Module]] = {
    **dict.fromkeys(("swiglu", "mlp"), feed_forward),
    "hourglass": Hourglass,
    "moe": MoE,
    "dynamic": DynamicWidth,
}


class WidthwiseDecoderLayer(GradientCheckpointingLayer):
    """Attention and feed-forward, with norms and access to the stream."""

    def __init__(self, config: Any, layer_idx: int, d_before: int):
        super().__init__()
        layer = config.per_layer_config[layer_idx]
        width = layer.layer_width
        access = RESIDUALS[config.residual["kind"]]
        self.attention_residual = access(config.residual, d_before, layer.layer_in, width)
        self.self_attn = WidthwiseAttention(config, layer, layer_idx)
        self.ffn_residual = access(config.residual, width, width, layer.layer_out)
        self.mlp = FEED_FORWARDS[layer.feed_forward["kind"]](layer, layer.feed_forward)

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        """hidden_states: (B, T, hidden_size) -> the same shape."""
        x, state = self.attention_residual.read(hidden_states)
        update, _ = self.self_attn(x, **kwargs)
        hidden_states = self.attention_residual.write(state, update)
        x, state = self.ffn_residual.read(hidden_states)
        return self.ffn_residual.write(state, self.mlp(x))


class WidthwisePreTrainedModel(PreTrainedModel):
    """Settings for transformers of the classes below."""

    config_class = WidthwiseConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["WidthwiseDecoderLayer"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_record_outputs = {"hidden_states": WidthwiseDecoderLayer, "attentions": WidthwiseAttention}
    _keys_to_ignore_on_load_unexpected = [r"^mtp\."]

    @property
    def _supports_sdpa(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """False with capped scores, which torch's fused function lacks: transformers then takes `eager`."""
        return all(layer.attention_score_cap is None for layer in self.config.per_layer_config)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, Matrix):
            initialization.normal_(module.weight, std=self.config.initializer_range)


class WidthwiseModel(WidthwisePreTrainedModel):
    """The embedding, the layers and the last norm."""

    def __init__(self, config: Any):
        config.mtp = None  # MTP heads are not loaded, so a saved model has none
        super().__init__(config)
        ends = RESIDUALS[config.residual["kind"]].ends(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, ends.n_columns)
        has_positions = config.learned_positions
        self.embed_positions = nn.Embedding(config.max_position_embeddings, ends.n_columns) if has_positions else None
        self.entry = ends.entry
        self.n_copies = ends.n_copies
        self.group_norm = ends.group_norm
        self.reduce = ends.reduce
        layers = config.per_layer_config
        before = [config.embedding_size, *(layer.layer_out for layer in layers)]
        self.layers = nn.ModuleList(WidthwiseDecoderLayer(config, i, before[i]) for i in range(len(layers)))
        self.ropes = {rope for layer in layers if (rope := rope_of(layer)) is not None}
        self.windows: list[int | None] = [layer.attention_window for layer in layers]
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
        """input_ids: (B, T), or inputs_embeds: rows of the embedding -> hidden states (B, T, embedding_size)."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        rows = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        n_new = rows.shape[1]
        n_seen = 0 if past_key_values is None else past_key_values.get_seq_length()
        if position_ids is None and attention_mask is not None and attention_mask.dim() == 2:
            # The number of real tokens before each token; a mask (B, S) is True at real tokens.
            position_ids = (attention_mask.long().cumsum(dim=1) - 1).clamp(min=0)[:, -n_new:]
        elif position_ids is None:
            position_ids = torch.arange(n_seen, n_seen + n_new, device=rows.device)[None]
        masks = {}
        for window in {*self.windows}:
            if window is not None and attention_mask is not None and attention_mask.dim() == 4:
                # `generate` prepared this mask for a static cache, and `create_causal_mask` would not change it.
                masks[window] = within_window(attention_mask, window, n_seen)
                continue
            masks[window] = create_causal_mask(
                config=self.config,
                inputs_embeds=rows,
                attention_mask=attention_mask,
                past_key_values=past_key_values,
                position_ids=position_ids,
                and_mask_function=None if window is None else sliding_window_overlay(window),
            )
        tables = {rope: rope_table(position_ids, rope) for rope in self.ropes}
        hidden_states = self.enter(rows, position_ids)
        for layer, window in zip(self.layers, self.windows):
            hidden_states = layer(
                hidden_states,
                attention_mask=masks[window],
                rope_tables=tables,
                past_key_values=past_key_values,
                **kwargs,
            )
        return BaseModelOutputWithPast(
            last_hidden_state=self.leave(hidden_states), past_key_values=past_key_values if use_cache else None
        )

    def enter(self, rows: Tensor, position_ids: Tensor) -> Tensor:
        """Return the stream before the first layer from rows of the embedding; other coordinates are 0."""
        rows = rows * self.config.embedding_multiplier
        if self.embed_positions is not None:
            rows = rows + self.embed_positions(position_ids)
        if self.entry is not None:
            rows = self.entry(rows)
        if self.n_copies > 1:
            rows = rows.repeat(1, 1, self.n_copies)
        return pad(rows, (0, self.config.hidden_size - rows.shape[-1]))

    def leave(self, stream: Tensor) -> Tensor:
        """Return the input of the head from the stream. Coordinates outside the norm stay unchanged."""
        n = self.config.final_norm_width
        if self.group_norm is not None:
            stream = self.group_norm(stream)
        if self.reduce is not None:
            stream = self.reduce(stream)
        return torch.cat((self.norm(stream[..., :n]), stream[..., n:]), dim=-1)[..., : self.config.embedding_size]


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
        """input_ids: (B, T) -> logits (B, T, vocab_size), and the loss of `labels`, shifted by transformers."""
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        positions = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, positions]) * self.config.logit_scale
        logits = soft_capped(logits, self.config.logit_cap)
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
