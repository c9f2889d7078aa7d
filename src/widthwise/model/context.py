"""Interfaces of the modules of a layer, and their inputs in a forward pass: context, masks and caches."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from widthwise.kernels.attention import visible
from widthwise.kernels.rotary import Rope
from widthwise.model.attention import AttentionConfig

Stream = Any
"""Value passed from layer to layer. Its type depends on the residual."""

Choices = dict[str, Tensor]
"""Decisions of a layer, returned in addition to the stream; empty if it makes none.

auxiliary_loss: scalar added to the objective, coefficients included; never part of a reported loss.
width_fraction: (B, T) fp32, hidden width of each token over d_ff, with gradient.
expert_load: (n_experts,), share of each expert in the routed choices, without gradient.
balance_loss, router_z_loss: scalars without gradient, for reports.
"""


@dataclass(frozen=True)
class PassContext:
    """Inputs of all layers, computed once before the first layer."""

    rope: dict[Rope, tuple[Tensor, Tensor]]
    """Rotary frequencies of a layer's heads -> cosines and sines for the tokens of this pass."""
    masks: dict[int | None, Tensor | None]
    """Window of attention -> (B or 1, 1, T, S): bool, True for visible keys, or numbers to add to the scores; None:
    causal over the T tokens within the window. Layers with capped scores read no mask, so a window that only they have
    is missing."""
    width_fraction: Tensor | None = None
    """Scalar that replaces the widths that dynamic-width layers choose for each token."""
    start: int = 0
    """Tokens in the cache before this pass."""
    positions: Tensor | None = None
    """integers (B or 1, T), positions of queries and keys; None if only layers are run."""
    documents: Tensor | None = None
    """integers (B, S), the document of each cached and new token: a query sees only tokens of its document;
    None: one document per row. For forms of attention that take no mask; `masks` contain the same information."""

    def first(self, n: int) -> "PassContext":
        """Return the context of the first n positions, for a pass without cache and padding."""
        rope = {kind: (cos[:, :n], sin[:, :n]) for kind, (cos, sin) in self.rope.items()}
        masks = {window: None if mask is None else mask[..., :n, :n] for window, mask in self.masks.items()}
        positions, documents = (None if x is None else x[:, :n] for x in (self.positions, self.documents))
        return replace(self, rope=rope, masks=masks, positions=positions, documents=documents)


def attention_mask(
    window: int | None, tokens: Tensor, start: int, documents: Tensor | None, dtype: torch.dtype
) -> Tensor | None:
    """Return the mask of new tokens (B, T) after `start` cached ones, for `PassContext.masks`.

    None: attention needs no mask but the causal one over the new tokens. dtype: torch.bool, or the dtype of numbers to
    add to the scores.
    """
    n_new = tokens.shape[1]
    hides_keys = window is not None and window < start + n_new
    if documents is None and (n_new == 1 or (start == 0 and not hides_keys)):  # one query sees all keys in its window
        return None
    mask = visible(n_new, start + n_new, documents, tokens.device, window)
    if dtype == torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -torch.inf)


def padding_documents(real: Tensor) -> Tensor:
    """Return documents, integers (B, S), that hide padding. real: bool (B, S), False on padding.

    The real tokens of a row are one document, and each padding token is a separate document.
    """
    return torch.where(real, 0, -1 - torch.arange(real.shape[1], device=real.device))


class FeedForward(nn.Module, ABC):
    """A feed-forward and its norm."""

    @abstractmethod
    def forward(self, x: Tensor, context: PassContext) -> tuple[Tensor, Choices]:
        """x: (B, T, d_model), the stream before the norm -> the update (B, T, d_out) and its choices."""


class Site(nn.Module, ABC):
    """One sublayer's access to the stream."""

    def set_index(self, index: int) -> None:
        """Set the number of sites before this one. Only initial weights may depend on it."""

    @abstractmethod
    def read(self, stream: Stream) -> tuple[Tensor, Any]:
        """Return the sublayer's input (B, T, d_read), and `skip`, which `write` needs."""

    @abstractmethod
    def write(self, skip: Any, update: Tensor) -> Stream:
        """update: (B, T, d_write), the sublayer's output -> the stream after it. Called once for each read."""


class Exit(nn.Module, ABC):
    """The modules between the last layer and the head."""

    def share_reduction(self, source: Any) -> None:
        """Use the reduction matrix of `source`, an exit of the same class, if the class has one."""

    @abstractmethod
    def forward(self, stream: Stream) -> Tensor:
        """Return the normalised input of the head, (B, T, d_model), from the stream after the last layer."""


class LayerCache:
    """Cached keys and values of one layer, for up to `capacity` tokens."""

    first = 0
    """Position of the first cached token."""

    def __init__(self, heads: AttentionConfig, batch_size: int, capacity: int, **tensor_options):
        self.heads = heads
        self.keys = torch.zeros(batch_size, heads.n_kv_heads, capacity, heads.head_dim, **tensor_options)
        self.values = torch.zeros(batch_size, heads.n_kv_heads, capacity, heads.value_dim, **tensor_options)

    def write(self, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store T tokens from position `start` on. Return the keys and values of tokens 0 to start + T - 1.

        keys: (B, n_kv_heads, T, head_dim), values: (B, n_kv_heads, T, v_head_dim) -> the same with start + T for T.
        """
        n_new = keys.shape[2]
        self.keys.narrow(2, start, n_new).copy_(keys)
        self.values.narrow(2, start, n_new).copy_(values)
        return self.keys.narrow(2, 0, start + n_new), self.values.narrow(2, 0, start + n_new)

    def copy_from(self, source: "LayerCache", length: int, counts: Tensor) -> None:
        """Copy the first `length` tokens of another cache, with its text i repeated counts[i] times.

        counts: integers (B,). Tokens that this cache has no room for are skipped.
        """
        start = max(source.first, self.first)
        for old, new in ((source.keys, self.keys), (source.values, self.values)):
            texts = old.narrow(2, start - source.first, length - start)
            new.narrow(2, start - self.first, length - start).copy_(texts.repeat_interleave(counts, dim=0))


class WindowCache(LayerCache):
    """Cached keys and values of the last tokens of a layer with a window; `capacity` may be shorter than the text."""

    def copy_from(self, source: LayerCache, length: int, counts: Tensor) -> None:
        self.first = max(source.first, length - self.keys.shape[2])
        super().copy_from(source, length, counts)

    def write(self, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store T tokens from position `start` on. Return the keys and values from the first token in their windows.

        Raise ValueError if the cache has dropped a token before `start` that is in the window of the new tokens.
        """
        assert self.heads.window is not None
        first = start - min(start, self.heads.window - 1)  # the first token in the window of token `start`
        if first == start:  # no earlier token is needed
            self.first = start
        if first < self.first:
            raise ValueError(f"a cache that holds tokens from {self.first} on cannot continue at {start}")
        end = start + keys.shape[2]
        first_cached = max(first, end - self.keys.shape[2])
        visible_tensors = []
        for cached, new in ((self.keys, keys), (self.values, values)):
            joined = torch.cat((cached[:, :, first - self.first : start - self.first], new), dim=2)
            cached[:, :, : end - first_cached] = joined[:, :, first_cached - first :]
            visible_tensors.append(joined)
        self.first = first_cached
        return visible_tensors[0], visible_tensors[1]


class KVCache:
    """One `LayerCache` per layer, with a common length and padding.

    The length counts the tokens of finished forward passes. The decoder reads it before the first layer and advances it
    after the last, so that all layers use the same positions.
    """

    def __init__(
        self, layers: Sequence[AttentionConfig], batch_size: int, capacity: int, n_rewound: int = 0, **tensor_options
    ):
        """layers: attention of each layer; capacity: in tokens; n_rewound: largest number of tokens of a pass that
        `rewind` may forget; tensor_options: dtype and device.
        """
        self.layers: list[LayerCache] = []
        for heads in layers:
            if heads.window is None or heads.window + n_rewound >= capacity:
                self.layers.append(LayerCache(heads, batch_size, capacity, **tensor_options))
            else:
                self.layers.append(WindowCache(heads, batch_size, heads.window + n_rewound, **tensor_options))
        self.n_rewound = n_rewound
        self.capacity = capacity
        self.length = 0
        self.has_padding = False
        self.is_real = torch.zeros(batch_size, capacity, dtype=torch.bool, device=tensor_options.get("device"))

    def check_room(self, batch_size: int, n_tokens: int) -> None:
        """Raise ValueError if n_tokens more tokens of batch_size texts do not fit."""
        if batch_size != len(self.is_real) or self.length + n_tokens > self.capacity:
            holds = f"a cache for {len(self.is_real)} texts of {self.capacity} tokens with {self.length} of them filled"
            raise ValueError(f"{holds} cannot take {n_tokens} tokens of {batch_size} texts")

    @property
    def real_tokens(self) -> Tensor | None:
        """bool (B, length): False for padding among the cached tokens; None if all are real (avoids a device sync)."""
        return self.is_real[:, : self.length] if self.has_padding and self.length else None

    def advance(self, n_tokens: int, is_real: Tensor | None = None) -> None:
        """Add the tokens just written to the length. is_real: bool (B, n_tokens), False on padding; None: all True."""
        self.has_padding = self.has_padding or is_real is not None
        self.is_real[:, self.length : self.length + n_tokens] = True if is_real is None else is_real
        self.length += n_tokens

    def repeated(self, counts: Tensor, capacity: int) -> "KVCache":
        """Return a new cache in which the copies of each text are adjacent, in the order of the texts.

        counts: integers (B,), the repetitions of each text.
        """
        keys = self.layers[0].keys
        heads = [layer.heads for layer in self.layers]
        n_texts = int(counts.sum())
        copy = KVCache(heads, n_texts, capacity, self.n_rewound, dtype=keys.dtype, device=keys.device)
        for old_layer, new_layer in zip(self.layers, copy.layers):
            new_layer.copy_from(old_layer, self.length, counts)
        is_real = self.real_tokens
        copy.advance(self.length, None if is_real is None else is_real.repeat_interleave(counts, dim=0))
        return copy

    def rewind(self, length: int) -> None:
        """Forget the tokens from `length` on. Raise ValueError if the cache has fewer than `length` tokens.

        With windows, `length` must be 0, or at most `n_rewound` tokens of the last pass may be forgotten.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"a cache of {self.length} tokens cannot be rewound to {length}")
        self.length = length

    @property
    def n_bytes(self) -> int:
        """Bytes of keys and values at full capacity."""
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.layers)
